"""Kademlia: who is near an id, and what is kept there."""
