"""The process of a grammar worker."""
