"""Benchmarks: each a function that returns plain numbers, and a command that shows and keeps them."""
