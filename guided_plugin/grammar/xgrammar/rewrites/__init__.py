"""Rewrites of JSON Schemas that keep their language, each a small plugin of the hook `register_lowerings`.

They bring schemas into the one form that xgrammar enforces: it reads one group of keywords a schema and
drops the others. llguidance needs none of them: what it doesn't take is lowered as a whole (`lowering/`).
"""
