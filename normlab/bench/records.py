"""Records as files: written by `normlab bench … --json`, read by `normlab bench report`."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

KINDS = ("norm", "ladder", "family", "sgemm", "host")


def write(record: dict[str, Any], path: Path) -> None:
    """Write a record, a line for each entry of a list, so that two of them can be compared with diff."""
    entries = []
    for key, value in record.items():
        if isinstance(value, list):
            lines = ",\n".join(f"  {json.dumps(entry)}" for entry in value)
            entries.append(f" {json.dumps(key)}: [\n{lines}\n ]")
        else:
            entries.append(f" {json.dumps(key)}: {json.dumps(value)}")
    path.write_text("{\n" + ",\n".join(entries) + "\n}\n")


def check_writable(*paths: Path | None) -> None:
    """Raise OSError now for a file that could not be written after minutes of measuring; leaves no new file behind."""
    for path in paths:
        if path is not None:
            there = path.exists()
            path.open("a").close()
            if not there:
                path.resolve().unlink()  # resolved: of a link to nothing, the file that it has just made


def load(names: list[str]) -> list[dict[str, Any]]:
    """The records of these files, or of these names in `records/`; without names, all that are there.

    Raises:
        OSError: no such file.
        ValueError: not a record of `normlab bench`.
    """
    folder = files("normlab.bench") / "records"
    if not names:
        every = sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda file: file.name)
        found = [json.loads(file.read_text()) for file in every]
        return sorted((one for one in found if one.get("what") in KINDS), key=lambda one: KINDS.index(one["what"]))
    records = []
    for name in names:
        stored = folder / f"{name}.json"
        try:
            record = json.loads(stored.read_text() if stored.is_file() else Path(name).read_text())
        except json.JSONDecodeError as error:
            raise ValueError(f"{name}: not JSON: {error}") from None
        if not isinstance(record, dict) or record.get("what") not in KINDS:
            raise ValueError(f"{name}: not a record of normlab bench {', '.join(KINDS)}")
        records.append(record)
    return records
