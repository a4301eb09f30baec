"""The xgrammar backend."""
