"""The network file: one TOML file with everything that a node must know.

Begin with `network_file.py`. A section (`sections.py`) checks itself when it is read, and its error
names the field and the remedy. It imports limits of protocols and registry, and must not know Node,
sockets or asyncio. Nothing else reads the file.
"""
