"""`shoal demo`: a whole network on this machine, checked by a process that trusts nobody."""
