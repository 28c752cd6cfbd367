"""The competition, with a made-up timer and contenders on the CPU."""

import pytest
import torch

from normlab.bench.check import Check
from normlab.bench.commands import left_out
from normlab.bench.contenders import Ours, load_peers, ours
from normlab.bench.norm import ahead, best_peer, compete, enter, measured, own
from normlab.bench.problem import DIRECTIONS, Problem, problems
from normlab.measure.timing import Spread

(TORCH,), _ = load_peers(["torch"])
SMALL = Problem("rms", "forward", "float32", 4, 16)  # 256 bytes an array


class Liar:
    """A contender whose output is wrong, or that raises, or is NaN."""

    memory_efficient, directions = False, DIRECTIONS

    def __init__(self, output, name="liar"):
        self.output, self.name = output, name

    def forward(self, data):
        return lambda: (self.output(data), None, None)


def unable(data):
    raise RuntimeError("no such shape\nand much more about it")


def test_a_contender_s_fraction_is_its_speed_over_that_of_the_copy(stopwatch):
    timer = stopwatch(1e-6, 2e-6, 4e-6)  # the copy, normlab, torch
    (row,) = compete([SMALL], [Ours(), TORCH], timer, "cpu")
    assert row["copy"] == {"median_us": 1.0, "lower_us": 0.9, "upper_us": 1.1, "gb_per_s": 0.5}
    mine, theirs = row["contenders"]["normlab"], row["contenders"]["torch"]
    assert (mine["of_copy"], theirs["of_copy"]) == (0.5, 0.25)
    assert (mine["median_us"], mine["lower_us"], mine["upper_us"]) == (2.0, 1.8, 2.2)
    assert mine["gb_per_s"] == 0.3  # 512 bytes in 2 µs
    assert 0 < mine["error_over_bound"] <= 1
    assert (best_peer(row), ahead(row), own(row)) == ("torch", 2.0, mine)
    backward = Problem("rms", "backward", "float32", 4, 16)
    (row,) = compete([backward], [TORCH], stopwatch(1e-6, 2e-6), "cpu")
    assert row["contenders"]["torch"]["of_copy"] == 0.75  # three arrays, where the copy has two
    assert (own(row), ahead(row)) == (None, None)


def test_a_row_says_what_the_problem_is_and_has_an_entry_for_everybody_who_takes_part(stopwatch):
    advanced = []
    wanted = problems(["layer", "rms"], ["forward", "backward"], ["bfloat16"], [4], [16])
    rows = compete(wanted, [*ours("both"), TORCH], stopwatch(1e-6), "cpu", lambda: advanced.append(1))
    assert len(rows) == len(advanced) == 4
    for row, problem in zip(rows, wanted, strict=True):
        assert set(row) == {"norm", "direction", "dtype", "n1", "n2", "bytes", "copy", "contenders"}
        assert (row["norm"], row["direction"], row["bytes"]) == (problem.norm, problem.direction, problem.bytes)
        recomputed = ["normlab-me"] if problem.direction == "backward" else []
        assert list(row["contenders"]) == ["normlab", *recomputed, "torch"]
        assert all(entry["status"] == "ok" for entry in row["contenders"].values())


def test_what_was_measured_before_an_interruption_is_kept(stopwatch):
    wanted = problems(["layer", "rms"], ["forward"], ["float32"], [4], [16, 32])

    def advance(finished=[]):  # noqa: B006 - it is to remember
        finished.append(1)
        if len(finished) == 3:
            raise KeyboardInterrupt

    rows = compete(wanted, [Ours()], stopwatch(1e-6), "cpu", advance)
    assert [(row["norm"], row["n2"]) for row in rows] == [(one.norm, one.n2) for one in wanted[:3]]
    assert left_out(rows, wanted) == {"left_out": 1}
    assert left_out(wanted, wanted) == {}
    with pytest.raises(KeyboardInterrupt):  # there is nothing to keep
        measured(wanted, lambda problem: advance([1, 1]), advance)


@pytest.mark.parametrize(
    ("liar", "status", "reason"),
    [
        (Liar(lambda data: data.x), "wrong", "output is off by"),
        (Liar(lambda data: torch.full_like(data.x, float("nan"))), "wrong", "output is off by inf times its bound"),
        (Liar(unable), "unable", "RuntimeError: no such shape"),
        (Liar(lambda data: data.x[:2]), "wrong", "output is off by inf times its bound"),
    ],
)
def test_a_wrong_contender_is_marked_and_not_timed(liar, status, reason, stopwatch):
    timer = stopwatch(1e-6)
    (row,) = compete([SMALL], [Ours(), liar], timer, "cpu")
    entry = row["contenders"]["liar"]
    assert entry["status"] == status
    assert reason in entry["reason"]
    assert "\n" not in entry["reason"]
    assert timer.calls == 2  # the copy and normlab
    assert (best_peer(row), ahead(row)) == (None, None)
    assert own(row) is not None


def test_normlab_itself_is_not_spared(stopwatch, monkeypatch):
    monkeypatch.setattr("normlab.bench.contenders.norms.rms_norm_forward", lambda x, *rest, **more: (x, x[:, 0]))
    (row,) = compete([SMALL], [Ours(), TORCH], stopwatch(1e-6), "cpu")
    assert row["contenders"]["normlab"]["status"] == "wrong"
    assert (own(row), ahead(row), best_peer(row)) == (None, None, "torch")


def test_what_is_not_ready_is_prepared_before_the_timer_starts():
    data = SMALL.draw("cpu")
    log = []

    class Slow(Liar):
        def forward(self, data):
            log.append("prepared")
            call = Ours().forward(data)
            return lambda: log.append("called") or call()

    def timer(call):
        log.append("timer")
        call()
        return Spread(1.0, 1.0, 1.0)

    enter(Slow(None), SMALL, data, Check(SMALL, data), timer, 1.0)
    assert log == ["prepared", "called", "timer", "called"]
