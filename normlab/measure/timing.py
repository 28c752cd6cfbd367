"""Measure time: on the GPU between two events with a cold L2, on the host with a clock; medians and quartiles.

The measurements of `normlab.bench` take any function from a call to a `Spread` as their timer: tests hand in their own.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Timer = Callable[[Callable[[], Any]], "Spread"]

REPETITIONS = 20
WARM_UP = 3
LONG = 0.05  # seconds; a call that takes as long is repeated less often
REPETITIONS_OF_LONG = 5
FLUSH_BYTES = 256 * 2**20  # the L2 of an H200 has 60 MiB
HEAD_START = 1_000_000  # GPU clocks, about 0.5 ms: longer than any contender's host side takes to queue its kernels
CALLS = (
    f"{REPETITIONS} calls after {WARM_UP} to warm up ({REPETITIONS_OF_LONG} after 2, where one takes {LONG:g} s or "
    "longer)"
)
METHOD = (
    f"CUDA events around each of {CALLS}, with nothing queued after it; before each, outside the events, the GPU waits "
    f"for the host to queue the call, then {FLUSH_BYTES >> 20} MiB are written, so that L2 holds none of the inputs; "
    "median and quartiles. Copy is torch's copy_ of an array of the same size, timed the same way just before."
)


class Spread(NamedTuple):
    """Seconds: the median of repeated measurements, and the quartiles around it."""

    median: float
    lower: float
    upper: float

    def as_dict(self) -> dict[str, float]:
        """Return it as a record has it, in microseconds."""
        names = ("median_us", "lower_us", "upper_us")
        return {name: round(1e6 * value, 3) for name, value in zip(names, self, strict=True)}


def spread(samples: list[float]) -> Spread:
    """Return median and quartiles of measurements.

    >>> spread([4.0, 1.0, 2.0, 3.0, 100.0])
    Spread(median=3.0, lower=2.0, upper=4.0)
    """
    lower, median, upper = np.percentile(samples, [25, 50, 75])
    return Spread(float(median), float(lower), float(upper))


class EventTimer:
    """A timer of a call on the GPU, with everything that the call reads in DRAM when it starts: see METHOD."""

    def __init__(self) -> None:
        import torch

        self.cuda = torch.cuda
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def __call__(self, call: Callable[[], Any], before: Callable[[], Any] | None = None) -> Spread:
        """Return the seconds of a call; `before` is queued before each call that is timed, outside the events."""
        call()
        (second,) = self.samples(call, 1, before)
        if second >= LONG:
            return spread(self.samples(call, REPETITIONS_OF_LONG, before))
        for _ in range(WARM_UP - 2):
            call()
        return spread(self.samples(call, REPETITIONS, before))

    def samples(self, call: Callable[[], Any], count: int, before: Callable[[], Any] | None = None) -> list[float]:
        """Return the seconds of `count` calls, each by itself."""
        begin, end = (self.cuda.Event(enable_timing=True) for _ in range(2))
        found = []
        for _ in range(count):
            self.cuda._sleep(HEAD_START)
            if before is not None:
                before()
            # The flush writes its buffer instead of reading it. The call then finds L2 full of modified lines, and has
            # to evict one to DRAM for each line that it leaves in L2 itself: so its time includes every byte it writes.
            self.flush.zero_()
            begin.record()
            call()
            end.record()
            # With the next call queued, one took 4.1 to 4.8 us on an H200 (quartiles), and without it 3.6 to 3.7.
            self.cuda.synchronize()
            found.append(1e-3 * begin.elapsed_time(end))
        return found


def host_time(
    call: Callable[[], Any],
    synchronize: Callable[[], Any],
    calls: int,
    wait: bool = False,
) -> Spread:
    """Return one call's time on the host's clock, of `calls` in a row on an idle GPU; with `wait`, until they are done.

    Few enough calls never fill the GPU's queue, so that the host does not wait for it.
    """
    _in_a_row(call, calls)
    samples = []
    for _ in range(REPETITIONS):
        synchronize()
        seconds = _in_a_row(call, calls)
        if wait:
            began = time.perf_counter()
            synchronize()
            seconds += time.perf_counter() - began
        samples.append(seconds / calls)
    synchronize()
    return spread(samples)


def _in_a_row(call: Callable[[], Any], calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        call()
    return time.perf_counter() - began
