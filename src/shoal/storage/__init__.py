"""What a node keeps on its disk, in lmdb files.

Begin with `lmdb_file.py`: folder, lock, transactions, growth, errors. On it stand `key_values.py`
(the disk of topics), `outbox.py` (rows of Spark queries until they are published) and the room
`message_store/`. Nothing here reads a clock or a random number; all of it blocks.
"""
