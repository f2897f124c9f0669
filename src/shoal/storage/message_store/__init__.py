"""The messages of a storage node: by position in the stream, and by offset in a log.

Begin with `store.py`, then `layout.py`, the format on disk. `ingest.py` takes messages,
`position_reader.py` and `logs.py` give them, `retention.py` lets them go, `damage.py` and
`integrity.py` deal with what cannot be read. `store_disk.py` puts it behind the disk port.

Words. A *place* is one (stream, partition). A *log* is what one storage node accepted at one
place, in the order of its commits; it is named by a UUID that was drawn for that node's database,
and each of its rows has a `seq`, from 1 on. A *replica* is another node's log held here.

What the seqs promise. Whatever way a message comes (live, late, repaired by anti-entropy, or with
a replica), a message that is new to this store gets the next seq of this store's own log, in the
transaction that stores it. So a log has no holes, is in commit order, and a range (a, b] of it
never changes: a late message comes after b. A message that is held already gets no second seq,
also when it comes again with a replica: then only the replica grows. Retention takes rows off the
old end and never renumbers; a message that was let go and comes again is new.

A store that cannot keep that promise, since it was restored from a copy, goes on under a new log
id, with all its rows (logs.py).

Retention removes a message from every log at once: the first available seq of a replica rises
above each row whose message is gone, even if older rows of that replica are still held.

Nothing here reads a clock or a random number: times are arguments, the log's UUID comes from the
entropy port. All of it blocks, and may be called from several threads.

Beside a thread that never leaves Python, a store is slow: lmdb's binding gives the interpreter up
at every call, and may wait a whole turn of 5 ms to get it back. An append of 1,024 took 435 ms
there, alone 5 ms. The event loop of a node is no such thread: it gives the interpreter up at every
check of a signature and at every poll. Shorter turns (sys.setswitchinterval) gained nothing there.
"""
