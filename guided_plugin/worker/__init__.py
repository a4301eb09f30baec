"""The grammar side in a process of its own: shared memory, the worker, and who watches
over it."""
