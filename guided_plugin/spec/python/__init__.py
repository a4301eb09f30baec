"""Types of Python as specs, and outputs as their values. Depends on errors.

`form` says what is asked for, `types` reads a type with pydantic.
"""
