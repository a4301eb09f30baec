"""Several ranks of one model: the first of each machine has grammars, the others of it
mask with its memory."""
