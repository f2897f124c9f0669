"""`python -m shoal.cli` is `shoal`."""

from __future__ import annotations

from shoal.cli.app import main

main()
