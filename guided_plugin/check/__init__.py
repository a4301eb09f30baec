"""What `check` tells about a spec."""
