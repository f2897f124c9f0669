"""BubbleStorm: exhaustive search in a random multigraph that keeps together as one circle.

Begin with `machine.py`: it takes every input and owns what the rooms keep. `rendezvous.py` is where
a query meets documents, `own_searches.py` what an application's search does. The rooms: `circle/`
(neighbours), `measuring/` (network size), `bubbles/` (how queries and data spread), `documents/`,
`watches/` and `queries/`. Nothing here knows streams, topics, sockets or the disk.
"""
