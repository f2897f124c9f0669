"""Streams over real kernels that lose packets, one process a host."""
