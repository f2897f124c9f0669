"""The `shoal` command.

Begin with `app.py`. `commands/` has the verbs, a file for each group; `terminal/` is how things are
shown. Commands for Spark, the lab and the demo are in their own packages.
"""

from collections.abc import Sequence
from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The command `shoal`; see app.py."""
    # Here, since app.py has the commands of other packages, which import this one.
    from shoal.cli import app

    app.main(arguments)
