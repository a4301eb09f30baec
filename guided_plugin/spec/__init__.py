"""What a request's output must look like: specs, the forms of clients, schemas and regexes."""

from guided_plugin.spec.output_spec import OutputSpec, language_of

__all__ = ["OutputSpec", "language_of"]
