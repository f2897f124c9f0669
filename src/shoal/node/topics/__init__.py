"""Durable topics for applications.

Begin with `topic.py`. `client.py` asks the topics machine and the DHT; `event.py` is what they
give. It must not know streams.
"""
