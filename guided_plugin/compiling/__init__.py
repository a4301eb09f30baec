"""From specs to grammars: limits, the choice of a backend, caches and helper
processes."""
