"""The five verbs of a step."""
