"""Write numbers as people read them: errors, bytes, times."""

import math
from typing import Any


def scientific(value: float) -> str:
    """Return two digits and an exponent, short.

    >>> scientific(0.02497), scientific(1), scientific(0), scientific(float("nan"))
    ('2.5e-2', '1.0', '0', 'NaN')
    """
    if math.isnan(value):
        return "NaN"
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}e{int(exponent)}" if int(exponent) else digits


def size(count: int) -> str:
    """Return a count of bytes in the unit that fits.

    >>> size(1080), size(416880)
    ('1.1 kB', '416.9 kB')
    """
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def megabytes(count: int) -> str:
    """Return a count of bytes in millions, as a column of one unit has it.

    >>> megabytes(2_181_038_080)
    '2,181.0'
    """
    return f"{count / 1e6:,.1f}"


def fixed(value: float | None, digits: int = 2, missing: str = "") -> str:
    """Return a number with so many digits, or what stands for a missing one.

    >>> fixed(0.984), fixed(None), fixed(1035.2, 0)
    ('0.98', '', '1035')
    """
    return missing if value is None else f"{value:.{digits}f}"


def quartiles(times: dict[str, Any], unit: float = 1.0) -> str:
    """Return a median of microseconds and the quartiles around it, in units of so many microseconds.

    >>> quartiles({"median_us": 102.0, "lower_us": 101.0, "upper_us": 103.0})
    '102.0 (101.0 to 103.0)'
    """
    median, lower, upper = (f"{times[name] / unit:.1f}" for name in ("median_us", "lower_us", "upper_us"))
    return f"{median} ({lower} to {upper})"
