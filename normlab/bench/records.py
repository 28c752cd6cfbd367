"""Read records of `normlab bench`: files, or those that lie in `records/`."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from normlab.bench.report import markdown

KINDS = ("norm", "ladder", "family", "sgemm", "host")


def load(names: list[str]) -> list[dict[str, Any]]:
    """Return the records of these files, or of these names in `records/`; without names, all that are there.

    Raises:
        OSError: no such file.
        ValueError: not a record of `normlab bench`, or one that lacks something; the text names the file.
    """
    folder = files("normlab.bench") / "records"
    if not names:
        every = sorted(file.name for file in folder.iterdir() if file.name.endswith(".json"))
        found = [json.loads((folder / name).read_text()) for name in every]
        whole = [_whole(name, one) for name, one in zip(every, found, strict=True) if one.get("what") in KINDS]
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
    """Return the record; ValueError if its tables cannot be made, because it was cut or made by hand."""
    try:
        markdown([record])
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        what, lack = record["what"], f"{type(error).__name__}: {error}"
        raise ValueError(f"{name}: not a whole record of normlab bench {what} ({lack})") from None
    return record
