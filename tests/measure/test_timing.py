from types import SimpleNamespace

import pytest

from normlab.measure.timing import REPETITIONS, WARM_UP, EventTimer, Spread, host_time, spread


def test_spread_is_median_and_quartiles_and_an_outlier_moves_neither():
    assert spread([5.0, 1.0, 2.0, 4.0, 3.0]) == Spread(3.0, 2.0, 4.0)
    assert spread([5000.0, 1.0, 2.0, 4.0, 3.0]) == Spread(3.0, 2.0, 4.0)
    assert spread([7.0]) == Spread(7.0, 7.0, 7.0)


def test_a_spread_is_recorded_in_microseconds():
    assert Spread(1.5e-4, 1e-4, 2e-4).as_dict() == {"median_us": 150.0, "lower_us": 100.0, "upper_us": 200.0}


class FakeCuda:
    """Notes what is queued, in order; an event is stamped with the time that all calls so far have taken."""

    def __init__(self):
        self.log, self.clock = [], 0.0

    def Event(self, enable_timing):  # noqa: N802
        assert enable_timing
        cuda = self

        class Event:
            def record(self):
                cuda.log.append("event")
                self.at = cuda.clock

            def elapsed_time(self, end):
                return end.at - self.at  # ms, as torch's

        return Event()

    def _sleep(self, cycles):
        self.log.append("head start")

    def synchronize(self):
        self.log.append("synchronize")


@pytest.mark.parametrize(("milliseconds", "calls"), [(0.25, REPETITIONS), (49, REPETITIONS), (51, 5)])
def test_every_timed_call_comes_after_a_head_start_and_a_flush_that_the_events_leave_out(milliseconds, calls):
    cuda = FakeCuda()
    timer = object.__new__(EventTimer)  # without the GPU that its buffer lies on

    def flush():
        cuda.log.append("flush")
        cuda.clock += 100.0

    timer.cuda, timer.flush = cuda, SimpleNamespace(zero_=flush)

    def call():
        cuda.log.append("call")
        cuda.clock += milliseconds

    def before():
        cuda.log.append("before")
        cuda.clock += 10.0

    assert timer(call, before) == Spread(*[pytest.approx(1e-3 * milliseconds)] * 3)
    assert cuda.log[1:7] == ["head start", "before", "flush", "event", "call", "event"]
    cuda.log.clear()
    assert timer(call) == Spread(*[pytest.approx(1e-3 * milliseconds)] * 3)
    once = ["head start", "flush", "event", "call", "event", "synchronize"]
    further = ["call"] * (WARM_UP - 2) if calls == REPETITIONS else []
    assert cuda.log == ["call", *once, *further, *once * calls]


def test_host_time_is_per_call_and_waits_only_if_told_to():
    for wait, expected in ((False, 1.0), (True, 1.5)):
        log, clock = [], [0.0]

        def call(clock=clock, log=log):
            log.append("call")
            clock[0] += 1.0

        def synchronize(clock=clock, log=log):
            log.append("wait")
            clock[0] += 2.0  # of 4 calls: 0.5 each

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("time.perf_counter", lambda clock=clock: clock[0])
            assert host_time(call, synchronize, 4, wait) == Spread(expected, expected, expected)
        assert log[:4] == ["call"] * 4
        assert log[4:9] == ["wait", "call", "call", "call", "call"]
