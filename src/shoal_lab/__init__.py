"""Experiments on the same code that nodes run: under virtual time, over sockets, over lossy
kernels, or as arrays. In the order of a run: `scenarios/` says what is asked for, `runs/` plans,
places and stores runs, `experiments/` are what they do, in a `testbed/`, against `baselines/`;
`report/` puts a folder of runs on a page beside published figures. Must not know shoal_city.
"""
