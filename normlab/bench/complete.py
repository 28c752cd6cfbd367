"""Is a record whole? Asked by `normlab.bench.records` of each that it loads, before a table asks for its numbers.

`FORMS` says what the tables, the plot and the README need of a record of each kind; what else it has is not asked.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from normlab.bench.problem import DIRECTIONS, NORMS

NUMBER = (int, float)
WORDS = {str: "text", int: "a whole number", NUMBER: "a number", dict: "an object", list: "a list"}


class Many(NamedTuple):
    """A list of values of a form, or (`of=dict`) an object of them by name; `least`: how many there have to be."""

    form: Any
    least: int = 1
    of: type = list


class Maybe(NamedTuple):
    """A form, or null."""

    form: Any


class IfThere(NamedTuple):
    """In an object: a form, or nothing of that name."""

    form: Any


class Tried(NamedTuple):
    """An object that is `ok`, which goes without saying, or "status": "unable" or "wrong", and then `otherwise`."""

    ok: dict[str, Any]
    otherwise: dict[str, Any]


STATUS = {"ok", "wrong", "unable"}


def entry(common: dict[str, Any], **ok: Any) -> Tried:
    """Of a contender or a step; `ok`: what it has where it is right, and was timed."""
    return Tried({**common, "status": str, **ok}, {**common, "status": STATUS, "reason": str})


def row(problem: dict[str, Any]) -> Tried:
    """Of a problem, on which contenders were timed or which could not be measured."""
    speeds = entry({}, **TIMES, of_copy=NUMBER)
    measured = {**problem, "copy": COPY, "contenders": Many(speeds, of=dict)}
    return Tried(measured, {**UNMEASURED, **problem, "contenders": Many(speeds, 0, dict)})


TIMES = {"median_us": NUMBER, "lower_us": NUMBER, "upper_us": NUMBER}
COPY = {"gb_per_s": NUMBER}
UNMEASURED = {"status": STATUS, "reason": str, "copy": Maybe(COPY)}
COMMON = {
    **{name: str for name in ("date", "command", "gpu", "driver", "method")},
    "absent": IfThere(Many(str, 0, dict)),
}
NORM = {"norm": set(NORMS), "direction": set(DIRECTIONS), "dtype": str, "n1": int, "n2": int}
FAMILY = {"norm": str, "direction": set(DIRECTIONS), "dtype": str, "layout": str, "shape": Many(int)}
KERNEL = {**TIMES, "kernel": str, "registers": int, "shared_bytes": int, "occupancy": Maybe(NUMBER)}
STEP = {"step": str, "summary": str}
CLIMBED = entry(STEP, **TIMES, gb_per_s=NUMBER, of_copy=NUMBER, kernels=Many(KERNEL, 0))
LADDER = {**NORM, "bytes": NUMBER, "steps": Many(CLIMBED)}
RATED = {**TIMES, "tflops": NUMBER, "error_over_bound": NUMBER, "of_cublas": Maybe(NUMBER), "of_peak": Maybe(NUMBER)}
SIZE = {"m": int, "n": int, "k": int, "operations": int, "peak_tflops": Maybe(NUMBER)}
FIRST = {"import_s": NUMBER, "call_s": NUMBER}
FORMS: dict[str, Any] = {
    "norm": {"rows": Many(row(NORM))},
    "family": {"rows": Many(row(FAMILY))},
    "ladder": Tried({**LADDER, "copy": COPY}, {**UNMEASURED, **LADDER}),
    "sgemm": {**SIZE, "reason": IfThere(str), "cublas": entry({}, **RATED), "steps": Many(entry(STEP, **RATED))},
    "host": {
        "rows": Many({**NORM, "contenders": Many(entry({}, eager=TIMES, graph=Maybe(TIMES)), of=dict)}),
        "first_calls": Many(entry({}, cold=FIRST, warm=FIRST), 0, dict),
    },
}


def first_lack(record: dict[str, Any]) -> str | None:
    """What is missing first, as "rows[0].copy is missing"; None of a record that is whole.

    >>> first_lack({"what": "norm", **dict.fromkeys(COMMON, "x"), "absent": {}, "rows": []})
    'rows is empty'
    """
    return next((lack for form in (COMMON, FORMS[record["what"]]) for lack in lacks(record, form, "")), None)


def lacks(value: Any, form: Any, where: str) -> Iterator[str]:
    """All that a value lacks of a form: a type, a set of words, a dictionary of forms, or one of the classes above."""
    if isinstance(form, Maybe):
        if value is not None:
            yield from lacks(value, form.form, where)
    elif isinstance(form, set):
        if not isinstance(value, str) or value not in form:
            yield f"{where} is not one of {', '.join(sorted(form))}"
    elif isinstance(form, Many):
        yield from _lacks_of_many(value, form, where)
    elif isinstance(form, (dict, Tried)):
        yield from _lacks_of_object(value, form, where)
    elif not isinstance(value, form) or isinstance(value, bool):
        yield f"{where} is not {WORDS[form]}"


def _lacks_of_many(value: Any, form: Many, where: str) -> Iterator[str]:
    kind: Any = form.of  # Any, else mypy takes what it is of for no more than an object
    if not isinstance(value, kind):
        yield f"{where} is not {WORDS[form.of]}"
    elif len(value) < form.least:
        yield f"{where} is empty"
    else:
        by_name = form.of is dict
        named = value.items() if by_name else enumerate(value)
        for name, one in named:
            yield from lacks(one, form.form, f"{where}.{name}" if by_name else f"{where}[{name}]")


def _lacks_of_object(value: Any, form: Any, where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where} is not {WORDS[dict]}"
        return
    if isinstance(form, Tried):
        form = form.ok if value.get("status", "ok") == "ok" else form.otherwise
    for name, inner in form.items():
        inside = f"{where}.{name}" if where else name
        if name in value:
            yield from lacks(value[name], inner.form if isinstance(inner, IfThere) else inner, inside)
        elif not isinstance(inner, IfThere):
            yield f"{inside} is missing"
