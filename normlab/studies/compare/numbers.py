"""Errors and bytes as people read them. For `normlab.studies.compare.verdict`, the report and the README's table."""

import numpy as np


def scientific(value: float) -> str:
    """Two digits and an exponent, short.

    >>> scientific(0.02497), scientific(1), scientific(0), scientific(float("nan"))
    ('2.5e-2', '1.0', '0', 'NaN')
    """
    if np.isnan(value):
        return "NaN"
    if value == 0 or np.isinf(value):
        return f"{value:g}"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}e{int(exponent)}" if int(exponent) else digits


def size(count: int) -> str:
    """Bytes for people.

    >>> size(1080), size(416880)
    ('1.1 kB', '416.9 kB')
    """
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
