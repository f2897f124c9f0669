"""What of a network file a running node can take, and what needs a restart."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from shoal.node.network_file import NetworkFile

TAKEN = ("trackers", "storage_nodes", "streams")
TAKEN_WITHIN = {
    "dht": ("bootstrap",),
    "search": ("bootstrap",),
    "tracker": ("degree", "policy"),
    "storage": ("days_max", "gigabytes_max"),
}
"""Fields of sections that a node has already. A tracker goes by its own for streams that come."""


class Reloaded(msgspec.Struct, frozen=True):
    """What became of another version of a network file, by section or field."""

    taken: tuple[str, ...]
    restart: tuple[str, ...]
    """These are different, and count from the next start of the node."""


class Comparison(msgspec.Struct):
    """Two versions of a network file."""

    network: NetworkFile
    """What a node that runs by the old one can go on by."""
    taken: list[str]
    restart: dict[str, str]


def compare(old: NetworkFile, new: NetworkFile) -> Comparison:
    """What is different, and what of that can be taken."""
    taken: list[str] = []
    restart: dict[str, str] = {}
    changes: dict[str, Any] = {}
    for name in NetworkFile.__struct_fields__:
        before, after = getattr(old, name), getattr(new, name)
        if before == after or name == "folder":
            continue
        # A node that knew no tracker has no part that could use one.
        if name in TAKEN and (name != "trackers" or (before and after)):
            changes[name] = after
            taken.append(name)
        elif before is None or after is None or name not in TAKEN_WITHIN:
            restart[name] = ""
        else:
            fields: dict[str, Any] = {}
            for field in before.__struct_fields__:
                if getattr(before, field) != getattr(after, field):
                    if field in TAKEN_WITHIN[name]:
                        fields[field] = getattr(after, field)
                        taken.append(f"{name}.{field}")
                    else:
                        restart[f"{name}.{field}"] = ""
            changes[name] = replace(before, **fields)
    return Comparison(replace(old, **changes), taken, restart)
