"""Several ranks of one model: rank 0 has the grammars, all mask with its memory or a
copy of it."""
