"""Bytes of the search protocol: the thesis' tables first, Shoal's own fields behind them.

codes       the number that a message begins with
tables      what the thesis prints, field by field: its bytes and back, nothing else
handshakes  the two lines of text that open a user connection
endpoints   the IPv4 address and port of a record, for the tables
forms       what the bytes of all messages have in common
circle, bubbles, clients, users
            the bytes of each message
codec       whole frames: the codec port
"""
