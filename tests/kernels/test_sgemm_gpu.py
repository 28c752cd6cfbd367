"""The SGEMM ladder on a GPU: every step at sizes that no simulator has the time for, whole results against float64."""

import pytest
import torch

from normlab import engine, sgemm
from normlab.bench.product import Check, Size
from normlab.kernels import LADDERS

pytestmark = pytest.mark.skipif(not engine.gpu_available(), reason="needs a GPU")
STEPS = [step.name for step in LADDERS["sgemm"]]
SIZES = [
    (1, 1, 1),
    (7, 33, 129),
    (129, 257, 33),
    (1000, 1001, 999),
    (1000, 1004, 1003),
    (4000, 4100, 300),
    (1024, 1024, 8192),
    (3, 70_000, 5),
]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("step", STEPS)
def test_a_step_is_right_on_the_gpu(step, size):
    a, b = Size(*size).draw("cuda")
    assert Check(a, b).worst(sgemm(a, b, step=step)) <= 1


@pytest.mark.parametrize("step", STEPS)
def test_a_step_adds_c_and_reads_rows_that_are_not_aligned(step):
    a, b = (
        torch.randn(count, device="cuda")[1:].view(shape)
        for count, shape in ((301 * 128 + 1, (301, 128)), (128 * 260 + 1, (128, 260)))
    )
    c = torch.randn(301, 260, device="cuda")
    got = sgemm(a, b, c, 1.0, 1.0, step=step)
    want = a.double() @ b.double() + c.double()
    check = Check(a, b)
    allowed = check.bound + 2.0**-23 * (want.abs() + check.bound)
    assert ((got.double() - want).abs() <= allowed).all()


def test_all_steps_give_the_same_bits():
    a, b = Size(300, 516, 700).draw("cuda")
    first, *others = (sgemm(a, b, step=step) for step in STEPS)
    assert all(torch.equal(first, other) for other in others)
