"""Build hook: put the experiments of scenarios/ into the wheel, where the lab looks for them.

Only into a real wheel: an editable install reads the folder in the source tree, and a copy beside
it would go stale at the first edit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ScenarioData(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        scenarios = Path(self.root, "scenarios")
        if version == "standard" and scenarios.is_dir():
            build_data["force_include"][str(scenarios)] = "shoal_lab/scenarios/scenarios_data"
