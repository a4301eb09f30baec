"""The grammar layer: vocabulary, backends, compiler, and the table of running
grammars."""
