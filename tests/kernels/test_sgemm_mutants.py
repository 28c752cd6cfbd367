"""Mistakes in the SGEMM kernels, which the ladder's checks must find: a race by `sanitize`, a value by its bound.

As `test_mutants`, whose machinery this uses, for steps with other operands.
"""

from importlib import import_module
from typing import NamedTuple

import pytest
from products import examine, operands, run, watched
from test_mutants import Mutation, imported_afresh

from normlab.engine import using


class Check(NamedTuple):
    """What must find a mutant: the step it is looked for in, on (m, k) times (k, n), by sanitize or by the bound."""

    step: str
    kind: str
    m: int = 5
    n: int = 12
    k: int = 17


BARRIER = "cuda.syncthreads()\n"  # found by the code line after it
NEXT_PART = "load_first(ring, slot, row, column, parts)\n        add"
ARRIVED = f"{BARRIER}        {NEXT_PART}"
VECTOR = "column < array.shape[1]:\n                load_vector"
TILING, BUFFERED, PIPELINED = "kernels.sgemm.tiling", "kernels.sgemm.buffered", "kernels.sgemm.step_11_pipelined"

# What must find it, its module, old and new code, and how often the old code occurs if more than once.
MUTATIONS = [
    (Check("shared_tile", "race", k=33), "kernels.sgemm.step_2_shared_tile", f"{BARRIER}        for k", "for k"),
    (Check("shared_tile", "race", k=33), "kernels.sgemm.step_2_shared_tile", f"{BARRIER}        start", "start"),
    (Check("shared_tile", "value"), "kernels.sgemm.step_2_shared_tile", "load(b_tile, (k, x))", "load(b_tile, (x, k))"),
    (Check("outer_product", "race", k=9), "kernels.sgemm.step_4_outer_product", f"{BARRIER}        start", "start"),
    (Check("z_order", "race", k=1), TILING, f"{BARRIER}            multiply", "multiply"),
    (Check("z_order", "race", k=9), TILING, f"{BARRIER}            start", "start"),
    (Check("z_order", "value", k=9), TILING, "put_a(a_tile, 0, a_staged", "put_a(a_tile, 0, b_staged"),
    (Check("z_order", "value"), "stages.lanes", "row = (lane >> 1 & 1)", "row = (lane & 1)"),
    (Check("vectors", "value", n=13), "stages.tile", VECTOR, VECTOR.replace("column < array.shape[1]", "True")),
    (Check("double_buffer", "race", k=9), BUFFERED, f"{BARRIER}            load_a", "load_a"),
    (Check("double_buffer", "value", k=9), BUFFERED, "first = DEPTH - first", "first = DEPTH"),
    (Check("double_buffer", "value", k=9), BUFFERED, "add_products(sums, a_part, b_part, 1)", "pass"),
    (Check("block_order", "value", 1, 129, 1), "stages.lanes", "within // rows", "within % rows"),
    (Check("pipelined", "race"), PIPELINED, ARRIVED, NEXT_PART),
    (Check("pipelined", "value"), PIPELINED, f"wait_copies(in_flight)\n        {ARRIVED}", ARRIVED),
    (Check("pipelined", "value", k=33), PIPELINED, "free = slot\n", "free = 0\n", 2),
    (Check("pipelined", "value", 33, 68, 41), PIPELINED, "b_from += depth * n", "b_from += depth"),
    (Check("pipelined", "value", 33, 68, 41), PIPELINED, "- (stages - 1) if", "- (stages - 2) if"),
    (Check("pipelined", "value", 33, 68, 41), PIPELINED, "start = turns * depth", "start = 0"),
    (Check("pipelined", "value", n=13), "stages.thread_tile", "row < output.shape[0]", "row <= output.shape[0]"),
    (Check("naive", "value"), "stages.thread_tile", "beta * load(c, (row, column))", "load(c, (row, column))"),
]  # fmt: skip


def hold(check: Check, monkeypatch) -> None:
    """Raise AssertionError, or what the simulator raises, for a step that is wrong."""
    pipelined = import_module(f"normlab.{PIPELINED}")
    small = pipelined.Tiles(runs_down=1, runs_across=1, warps_down=2, warps_across=2, depth=8, stages=3, blocks=1)
    monkeypatch.setattr(pipelined, "PLAN", small)
    (step,) = (step for step in import_module("normlab.kernels").LADDERS["sgemm"] if step.name == check.step)
    given = operands(check.m, check.n, check.k, 1.0, 0.5)

    if check.kind == "race":
        run(step, given, watched)
    else:
        examine(step, given)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: f"{mutation[0].step}-{mutation[2][:30]}")
def test_the_checks_reject_the_mutant(mutation, tmp_path, monkeypatch):
    check, module, old, new, *times = mutation
    mutant = Mutation("", module, old, new, "", *times)
    with imported_afresh(mutant, tmp_path, monkeypatch), using("simulator"):
        with pytest.raises((AssertionError, IndexError)) as found:
            hold(check, monkeypatch)
        assert ("race" in str(found.value)) == (check.kind == "race")


@pytest.mark.parametrize("check", sorted({check for check, *_ in MUTATIONS if check.kind == "value"}), ids=str)
def test_the_same_check_accepts_the_real_thing(check, monkeypatch):  # races: test_sgemm.py's sanitize
    with using("simulator"):
        hold(check, monkeypatch)
