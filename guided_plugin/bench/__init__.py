"""Benchmarks of the three `hosts`: each a function that returns plain numbers, unguided next to guided.

What only maintainers measure is in `benchmarks/` of the repository.
"""
