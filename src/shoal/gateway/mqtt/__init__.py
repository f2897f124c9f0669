"""A bridge between streams and the topics of an MQTT broker.

`bridge.py` says what goes where, and when a message counts as given; `session.py` is the connection
to the broker.
"""
