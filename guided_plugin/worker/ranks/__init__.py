"""Several ranks of one model on one machine: rank 0 has the grammars, all mask with its shared memory."""
