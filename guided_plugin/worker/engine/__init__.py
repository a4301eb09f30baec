"""The engine's side of a grammar worker."""
