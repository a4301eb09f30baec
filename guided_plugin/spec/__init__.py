"""What a request's output must look like: specs, the forms of clients, schemas and regexes."""

from guided_plugin.spec.output_spec import OutputSpec, identity_of, language_of

__all__ = ["OutputSpec", "identity_of", "language_of"]
