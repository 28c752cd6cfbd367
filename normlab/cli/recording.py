"""Make a record with a progress bar, write it to files and show it in the terminal."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from normlab.cli.waiting import progress

Record = dict[str, Any]


def recorded(
    measure: Callable[[Callable[[], None]], Record],
    count: int | None,
    show: Callable[[Record], None],
    draw: Callable[[Record, Path], None],
    json_file: Path | None,
    plot: Path | None,
) -> None:
    """Make a record by `measure(advance)`, write it to `json_file`, draw it to `plot`, and show it.

    count: how often `measure` calls `advance`, which moves the progress bar; None if that is unknown.
    """
    from normlab.measure import files

    with progress(count) as advance:
        record = measure(advance)
    if json_file is not None:
        files.write(record, json_file)
    if plot is not None:
        draw(record, plot)
    show(record)
