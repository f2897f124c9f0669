"""Authenticated links between nodes.

Begin with `port.py`: what a driver may ask of any transport. A transport (`websocket.py`,
`webrtc.py`, `memory.py`) makes carriers of whole messages; `link.py` on top of one does handshake,
framing, queue, liveness and end. Nothing here knows machines or messages of protocols.
"""
