"""A worker's rings on the device: buffers, streams and kernels."""
