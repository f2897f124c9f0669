"""Notes that anybody may add to, that no server keeps, and that can be searched: without async.

./run up                                  # leave it; in another terminal, in the same folder:
.venv/bin/python examples/notes.py
"""

import shoal


def main() -> None:
    with shoal.connect("shoal.toml") as node:
        notes = node.create_topic("notes", publishers=shoal.ANYONE)
        print(f"topic {notes.cid}: give this to others")
        for text in (b"milk", b"bread", b"a longer ladder"):
            notes.publish(text, replicas=1)
        for note in notes.read():  # the newest first
            print(f"{note.created:%T} {note.payload.decode()}")
        node.put({"title": "shopping notes", "topic": notes.cid}, name="notes")
        for hit in node.search("title:shopping"):
            print(f"found {hit.content['title']} of {hit.owner}")


if __name__ == "__main__":
    main()
