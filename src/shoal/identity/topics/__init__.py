"""What a topic and its events are: descriptors, their bytes, their names, who signed them.

cid           content identifiers
dag_cbor      canonical DAG-CBOR
descriptors   topics and events
canonical     a descriptor's bytes
signing       author and publisher
limits        how large they may be

Down here for the same reason as stream_message: executors of the pipeline check events by these
bytes, and have no protocol.
"""
