"""Streams under packet loss: real nodes and real kernels, over a network that loses packets."""
