"""What counts as an input, of which only the indices are watched, and that nothing is missed for it."""

import numpy as np
import pytest
from numba import cuda, float32
from sim.planted import PLANTED

from normlab.sim import sanitize, sanitizing
from normlab.sim.sanitizing.inputs import inputs_of


@cuda.jit(device=True)
def element(x, i):
    return x[i]


@cuda.jit
def row_sum(x, weight, y):
    row = cuda.grid(1)
    total = float32(0)
    for column in range(x.shape[1]):
        total += x[row, column] * (weight[column] if weight is not None and len(weight) else float32(1))
    y[row] = total


@cuda.jit
def otherwise(alias, view, row, given, stored, added, returned, awaited, polled, tested, unused):
    other = alias
    other[0] = 1
    part = view[1:]
    part[0] = 1
    one = row[0]
    one[0] = element(given, 0)
    stored[0] = added[0]
    added[0] += 1
    while awaited[0] == 0:
        pass
    while True:
        if polled[0]:
            break
    done = False
    while not done:
        done = tested[0] != 0
    return returned


def names(kernel, *arrays, empty=()):
    return inputs_of(kernel.py_func.__code__, list(arrays), list(empty))


def test_what_is_only_read_by_element_is_an_input():
    x, weight, y = np.ones((4, 3)), np.ones(3), np.ones(4)
    assert names(row_sum, x, weight, y) == {"x", "weight"}
    assert names(row_sum, x, None, y) == {"x"}


def test_what_is_mentioned_in_any_other_way_is_not():
    arrays = [np.ones((2, 2)) if name == "row" else np.ones(2) for name in otherwise.py_func.__code__.co_varnames[:11]]
    assert names(otherwise, *arrays) == {"unused"}


def test_an_array_whose_rows_are_taken_is_not():
    assert names(row_sum, np.ones((4, 3)), np.ones((3, 3)), np.ones(4)) == {"x"}


def test_memory_that_is_written_under_another_name_or_has_no_contents_is_not():
    memory = np.ones((4, 3))
    assert names(row_sum, memory, np.ones(3), memory[:, 0]) == {"weight"}
    assert names(row_sum, memory, memory[0], (memory[0],)) == set()
    assert names(row_sum, memory, np.ones(3), np.ones(4), empty=[memory[1:2]]) == {"weight"}


def test_records_are_not_and_without_source_nothing_is():
    records = np.zeros(3, [("value", np.float32)])
    assert names(row_sum, np.ones((4, 3)), records, np.ones(4)) == {"x"}
    made = {}
    exec("def copied(x, y):\n    y[0] = x[0]\n", made)
    assert inputs_of(made["copied"].__code__, [np.ones(1), np.ones(1)], []) == set()


@cuda.jit
def outside(x, out):
    out[0] = x[cuda.threadIdx.x - 1]
    out[1] = x[x.size]


def test_the_indices_of_an_input_are_watched():
    x, out = np.array([1, 2], np.float32), np.zeros(2, np.float32)
    assert names(outside, x, out) == {"x"}
    report = sanitize(outside)[1, 1](x, out)
    assert [(finding.kind, finding.array) for finding in report.findings] == [
        ("negative-index", "x"),
        ("out-of-bounds", "x"),
    ]
    assert out[0] == 2
    assert np.isnan(out[1])


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_the_report_is_the_same_when_everything_is_watched(bug, monkeypatch):
    def report():
        arguments = bug.arguments()
        empty = [arguments[at] for at in bug.uninitialized]
        return sanitize(bug.kernel, empty, cluster=bug.cluster)[bug.configuration](*arguments)

    short = report()
    monkeypatch.setattr(sanitizing, "inputs_of", lambda *_: set())
    assert str(report()) == str(short)
