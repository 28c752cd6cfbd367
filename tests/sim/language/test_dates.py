"""Kernels on dates and durations: NumPy's datetime64 and timedelta64, which Numba's arithmetic follows."""

import numpy as np
import pytest
from numba import cuda

from normlab.sim import sanitize, simulate, trace

DATES = np.arange("2005-02-01", "2005-02-21", dtype="datetime64[D]")
LATER = DATES[::-1].copy()
LATER[2] = np.datetime64("NaT")
SPAN = np.timedelta64(3, "D")


def right():
    passed = LATER - DATES
    columns = [passed * 2 + SPAN, np.where(passed > SPAN, abs(passed), -SPAN), DATES + SPAN + passed - LATER]
    return np.stack(columns, axis=1), DATES < LATER


@pytest.mark.parametrize("world", [simulate, sanitize, trace])
def test_dates_and_durations_compute_as_numpy_s(world):
    def dates(first, second, span, out, later):
        i = cuda.grid(1)
        if i < first.size:
            passed = second[i] - first[i]
            out[i, 0] = passed * 2 + span
            out[i, 1] = abs(passed) if passed > span else -span
            moved = first[i] + span
            moved += passed
            out[i, 2] = moved - second[i]
            later[i] = first[i] < second[i]

    out, later = np.zeros((20, 3), "timedelta64[D]"), np.zeros(20, bool)
    world(dates)[2, 16](DATES, LATER, SPAN, out, later)
    wanted, order = right()
    assert (out.view(np.int64) == wanted.view(np.int64)).all()  # NaT, too
    assert (later == order).all()
