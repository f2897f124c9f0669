"""Where scenarios are found: by path, or by name among those that come with Shoal."""

from __future__ import annotations

import difflib
from pathlib import Path

from shoal.base.errors import NotFound

_PACKAGE = Path(__file__).parent


def scenario_folder() -> Path:
    """The scenarios of this copy of Shoal: beside the code in a wheel, else in the source tree."""
    shipped = _PACKAGE / "scenarios_data"
    return shipped if shipped.is_dir() else _PACKAGE.parents[2] / "scenarios"


def list_scenarios() -> list[Path]:
    """The files of all scenarios that come with Shoal, by name."""
    return sorted(scenario_folder().glob("*.toml"))


def find_scenario(name: str) -> Path:
    """The file of a scenario, given its path or its name; NotFound lists what there is."""
    path = Path(name)
    if path.suffix == ".toml" or len(path.parts) > 1:
        if path.is_file():
            return path
        raise NotFound(f"no scenario file {name}: `shoal lab list` shows those that have a name")
    known = {file.stem: file for file in list_scenarios()}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    guess = f" did you mean {near[0]}?" if near else ""
    raise NotFound(f"no scenario {name!r}:{guess} there are {', '.join(known) or 'none'}")
