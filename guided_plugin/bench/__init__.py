"""Benchmarks: each a function that returns plain numbers, and a command that prints and writes them."""
