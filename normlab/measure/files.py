"""Write records as JSON files, and read those that come with normlab."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

RECORDS = files("normlab") / "bench" / "records"


def write(record: dict[str, Any], path: Path) -> None:
    """Write a record, with a line for each entry of a list, so that diff can compare two records."""
    entries = []
    for key, value in record.items():
        if isinstance(value, list):
            lines = ",\n".join(f"  {json.dumps(entry)}" for entry in value)
            entries.append(f" {json.dumps(key)}: [\n{lines}\n ]")
        else:
            entries.append(f" {json.dumps(key)}: {json.dumps(value)}")
    path.write_text("{\n" + ",\n".join(entries) + "\n}\n")


def check_writable(*paths: Path | None) -> None:
    """Raise OSError for a file that cannot be written, before minutes of measuring; leave no new file behind."""
    for path in paths:
        if path is not None:
            there = path.exists()
            path.open("a").close()
            if not there:
                path.resolve().unlink()  # a link to nothing stays: only the file that it has just made goes


def known() -> list[str]:
    """Return the names of all records that come with normlab, in alphabetical order."""
    return sorted(file.name.removesuffix(".json") for file in RECORDS.iterdir() if file.name.endswith(".json"))


def record(name: str) -> dict[str, Any]:
    """Return the record normlab/bench/records/NAME.json.

    Raises:
        FileNotFoundError: there is no record of that name; the text lists those there are.
    """
    if name not in known():
        raise FileNotFoundError(f"no record {name!r}; there are {', '.join(known())}")
    return json.loads((RECORDS / f"{name}.json").read_text())
