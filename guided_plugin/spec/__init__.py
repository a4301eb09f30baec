"""The demands on a request's output: specs, the forms of clients, schemas and
regexes."""

from guided_plugin.spec.output_spec import (
    OutputSpec,
    check_is_spec,
    check_room,
    identity_of,
    language_of,
    packed,
    unpacked,
)
from guided_plugin.spec.typed_spec import TypedSpec, reader_of

__all__ = [
    "OutputSpec",
    "TypedSpec",
    "check_is_spec",
    "check_room",
    "identity_of",
    "language_of",
    "packed",
    "reader_of",
    "unpacked",
]
