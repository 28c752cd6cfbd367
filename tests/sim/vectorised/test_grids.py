"""All blocks of a launch meet in the vectorised engine, and what comes after finds what was stored before."""

import numpy as np
import pytest
from numba import cuda, float32
from sim.vectorised.engines import VECTORISED, compared

from normlab.engine import grid_sync
from normlab.sim import simulate
from normlab.sim.vectorised import engine, machine


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=256).astype(np.float32)


@cuda.jit
def sweeps(x, y, total):
    i, grid = cuda.grid(1), cuda.cg.this_grid()
    for _ in range(3):
        y[i] = x[(i + 1) % x.size] + grid.size
        grid.sync()
        x[i] = y[(i + 65) % x.size] * float32(0.5)
        cuda.atomic.add(total, 0, x[i])
        grid.sync()
    y[i] += total[0]


@cuda.jit
def after_some_have_returned(x):
    i = cuda.grid(1)
    if i > 70:
        return
    x[i] = i
    cuda.cg.this_grid().sync()
    if i < 70:
        x[i] += x[70]


@cuda.jit
def a_race_after_the_sync(x):
    i = cuda.grid(1)
    cuda.cg.this_grid().sync()
    x[i] = x[(i + 70) % 256]


@cuda.jit
def some_blocks(x):
    i = cuda.grid(1)
    if cuda.blockIdx.x > 0:
        cuda.cg.this_grid().sync()
    x[i] += 1


@cuda.jit
def counted(x, y, counts):
    i = cuda.grid(1)
    y[i] = x[i]
    grid_sync(counts, 0)
    x[i] = y[255 - i]
    grid_sync(counts, 1)
    y[i] = x[(i + 64) % 256]


@pytest.mark.parametrize("together", [True, False], ids=["in one chunk", "in chunks at first"])
def test_threads_find_after_a_grid_sync_what_other_blocks_have_stored(x, together, monkeypatch):
    if not together:
        monkeypatch.setattr(engine, "LANES", 64)
    assert compared(sweeps, (4, 64), x, np.zeros_like(x), np.zeros(1, np.float32)) == VECTORISED
    assert compared(after_some_have_returned, (4, 64), x) == VECTORISED


def test_the_engines_own_grid_sync_counts_the_blocks(x):
    assert compared(counted, (4, 64), x, np.zeros_like(x), np.zeros(2, np.uint32)) == VECTORISED
    assert "has not begun at 0" in compared(counted, (4, 64), x, np.zeros_like(x), np.ones(2, np.uint32))


def test_races_after_a_grid_sync_and_syncs_of_some_blocks_are_the_schedulers(x):
    assert "the schedule decides" in compared(a_race_after_the_sync, (4, 64), x)
    assert "only some threads of the grid" in compared(some_blocks, (4, 64), x)


def test_a_grid_of_too_many_threads_is_the_schedulers(x, monkeypatch):
    monkeypatch.setattr(engine, "LANES", 64)
    launch = simulate(after_some_have_returned, explain=True)[4, 64]
    assert launch(x.copy()) == VECTORISED
    monkeypatch.setattr(machine, "MOST_THREADS", 255)
    assert "so many threads" in launch(x.copy())
