"""Answers to what people ask when something is not as they expect. Depends on the
compiler.

`check`: does a spec compile, what becomes of its keywords, which texts does it take.
`explain`: where an output stands (`position`), and how it could end. `doctor`: does
everything work here (`machine`).
"""
