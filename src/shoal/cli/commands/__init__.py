"""The verbs of `shoal`, a file for each group.

Modules that are slow to load are imported inside the commands, so that `shoal --help` is quick.
"""
