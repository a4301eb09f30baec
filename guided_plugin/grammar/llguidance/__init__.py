"""The llguidance backend."""
