"""Records as files: written by `normlab bench … --json`, read by `normlab bench report`."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from normlab.bench.complete import first_lack

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
        ValueError: not a record of `normlab bench`, or one that lacks something; with the file and what.
    """
    folder = files("normlab.bench") / "records"
    if not names:
        every = sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda file: file.name)
        found = [(file.name, json.loads(file.read_text())) for file in every]
        whole = [_whole(name, one) for name, one in found if one.get("what") in KINDS]
        return sorted(whole, key=lambda one: KINDS.index(one["what"]))
    records = []
    for name in names:
        stored = folder / f"{name}.json"
        try:
            record = json.loads(stored.read_text() if stored.is_file() else Path(name).read_text())
        except json.JSONDecodeError as error:
            raise ValueError(f"{name}: not JSON: {error}") from None
        if not isinstance(record, dict) or record.get("what") not in KINDS:
            raise ValueError(f"{name}: not a record of normlab bench {', '.join(KINDS)}")
        records.append(_whole(name, record))
    return records


def _whole(name: str, record: dict[str, Any]) -> dict[str, Any]:
    """The record, unless it was cut or made by hand, and not whole."""
    if (lack := first_lack(record)) is not None:
        raise ValueError(f"{name}: not a whole record of normlab bench {record['what']}: {lack}")
    return record
