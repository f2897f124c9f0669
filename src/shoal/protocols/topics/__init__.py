"""Durable topics: signed, content-addressed events.

cid          names of blocks: CIDv1 over DAG-CBOR and sha2-256
descriptors  topics and events as people think of them; they cannot be built invalid
canonical    their bytes, and back
signing      who signs which of these bytes, and what identifies an event
rpc          what peers say to each other, as protobuf
"""
