"""What was measured on hardware.

`normlab bench` measures speed (`commands`, `norm`, `ladder`, `host`). `records/` keeps that, and what the simulator was
held against: JSON files with date, machine, versions and the command that made them.
"""

import json
from importlib.resources import files
from typing import Any


def record(name: str) -> dict[str, Any]:
    """Return the record `records/NAME.json`; raises FileNotFoundError, naming those there are, for any other name."""
    folder = files("normlab.bench") / "records"
    known = sorted(file.name.removesuffix(".json") for file in folder.iterdir() if file.name.endswith(".json"))
    if name not in known:
        raise FileNotFoundError(f"no record {name!r}; there are {', '.join(known)}")
    return json.loads((folder / f"{name}.json").read_text())
