"""How many files a process may have open: each link takes one."""

from __future__ import annotations

import resource
from contextlib import suppress


def allow_all_files() -> None:
    """As many as the system allows at all. It gives fewer at first, 1,024 mostly, for the sake of
    programs that cannot count further."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems allow less than they say
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
