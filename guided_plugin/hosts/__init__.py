"""Hosts: what drives a pipeline from inside an engine. Each imports its engine
lazily."""
