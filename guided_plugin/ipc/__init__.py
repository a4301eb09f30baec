"""Talking to processes of this package, and starting them."""
