"""Where an output stands in its grammar: what may come next, what was refused, how it could end."""
