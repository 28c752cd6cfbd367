"""Read records of `normlab bench`: files, or those that come with normlab."""

import json
from pathlib import Path
from typing import Any

from normlab.bench.report import markdown
from normlab.measure import files

KINDS = ("norm", "sweep", "ladder", "family", "sgemm", "host")


def load(names: list[str]) -> list[dict[str, Any]]:
    """Return the records of these files, or of these names in `records/`; without names, all that are there.

    Raises:
        OSError: no such file.
        ValueError: not a record of `normlab bench`, or one that lacks something; the text names the file.
    """
    known = files.known()
    if not names:
        every = {name: files.record(name) for name in known}
        found = [_whole(name, one) for name, one in every.items() if one.get("what") in KINDS]
        return sorted(found, key=lambda one: KINDS.index(one["what"]))
    records = []
    for name in names:
        try:
            record = files.record(name) if name in known else json.loads(Path(name).read_bytes())
        except ValueError as error:
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
