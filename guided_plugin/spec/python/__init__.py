"""Types and functions of Python as specs, and outputs as their values. Depends on errors.

`form` says what is asked for; `library` what reads a type: `plain` for the standard library's, else pydantic
or msgspec, which are imported where a type needs them. `calls` makes functions into types.
"""
