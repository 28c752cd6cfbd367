"""Five thousand million elements in both directions, on a GPU: indices, grids and sums beyond 2^31 and 2^32."""

from functools import partial
from importlib.util import find_spec

import ml_dtypes
import pytest
from draws import Case
from examine import arithmetic, backward_bound, backward_truth, forward_bound, forward_truth, with_plan

from normlab import layer_norm_backward, layer_norm_forward, oracle
from normlab.engine import gpu_available
from normlab.host.checks import step_of
from normlab.kernels import BEST

GIB = 2**30
NEEDED = 60 * GIB
EPS = 1e-5
CHUNK = 2**28  # elements


@pytest.fixture
def torch():
    """torch, where a GPU has the room."""
    if not gpu_available() or not find_spec("torch"):
        pytest.skip("needs a GPU, and torch")
    import torch

    free = torch.cuda.mem_get_info()[0]
    if free < NEEDED:
        pytest.skip(f"needs {NEEDED // GIB} GiB of free GPU memory, and there are {free // GIB}")
    yield torch
    torch.cuda.empty_cache()


def rows_to_check(n1, n2):
    """The first rows and the last, and those around 2^31 and 2^32 elements."""
    around = [2**power // n2 + step for power in (31, 32) for step in (-1, 0, 1)]
    return [0, 1, *around, n1 - 2, n1 - 1]


def on_host(tensor):
    """A bfloat16 tensor as a NumPy array."""
    return tensor.float().cpu().numpy().astype(ml_dtypes.bfloat16)


def parameter_gradients(x, grad_output, mean, invvar):
    """The sums over rows in float64, and those of the terms' magnitudes, by chunks: of grad_weight, of grad_bias."""
    rows = CHUNK // x.shape[1]
    totals = [0.0, 0.0, 0.0, 0.0]
    for start in range(0, x.shape[0], rows):
        part = slice(start, start + rows)
        grad = grad_output[part].double()
        products = (x[part].double() - mean[part, None].double()) * invvar[part, None].double() * grad
        for k, terms in enumerate((products, products.abs(), grad, grad.abs())):
            totals[k] = totals[k] + terms.sum(0)
    return [total.cpu().numpy() for total in totals]


@pytest.mark.parametrize(("n1", "n2"), [(1_220_704, 4096), (76_294, 65536)])
def test_five_thousand_million_elements_are_right(torch, n1, n2):
    generator = torch.Generator("cuda").manual_seed(0)
    x, grad_output = (
        torch.empty((n1, n2), device="cuda", dtype=torch.bfloat16).normal_(generator=generator) for _ in range(2)
    )
    weight, bias = (
        torch.empty(n2, device="cuda", dtype=torch.bfloat16).normal_(1, 0.1, generator=generator) for _ in range(2)
    )
    (output, mean, invvar), plan = with_plan(partial(layer_norm_forward, x, n2, weight, bias, eps=EPS))
    rows = rows_to_check(n1, n2)
    case = Case(on_host(x[rows]), on_host(weight), on_host(bias), on_host(grad_output[rows]), EPS, rms=False)
    before = arithmetic(case, plan.rows, statistics=step_of("forward", BEST["forward"]).statistics)
    truth, bound = forward_truth(case), forward_bound(case, before)
    oracle.assert_within(on_host(output[rows]), truth.output, bound.output, "output")
    oracle.assert_within(mean[rows].cpu().numpy(), truth.mean, bound.mean, "mean")
    oracle.assert_within(invvar[rows].cpu().numpy(), truth.invvar, bound.invvar, "invvar")

    for memory_efficient in (True, False):
        saved, saved_mean = (output, None) if memory_efficient else (x, mean)
        rest = {"eps": EPS, "memory_efficient": memory_efficient}
        (grad_input, grad_weight, grad_bias), plan = with_plan(
            partial(layer_norm_backward, grad_output, saved, saved_mean, invvar, n2, weight, bias, **rest)
        )
        how = arithmetic(case, plan.rows, plan.columns)
        limit = backward_bound(case, how, memory_efficient, forward=before).grad_input
        oracle.assert_within(on_host(grad_input[rows]), backward_truth(case).grad_input, limit, "grad_input")
        del grad_input
        output = None  # no longer needed: room for the sums

    sums = parameter_gradients(x, grad_output, mean, invvar)
    # One rounding per addition, a few for each term, and one in the end. The last plan has made these sums.
    relative = (plan.columns.terms + plan.columns.merges + 8) * 2.0**-24
    for got, want, magnitude in ((grad_weight, *sums[:2]), (grad_bias, *sums[2:])):
        oracle.assert_within(on_host(got), want, relative * magnitude + 2.0**-8 * abs(want), "parameter gradient")


def test_the_rows_that_are_checked_lie_beyond_2_to_the_32():
    for n1, n2 in ((1_220_704, 4096), (76_294, 65536)):
        rows = rows_to_check(n1, n2)
        assert n1 * n2 >= 5 * 10**9 - n2
        assert max(rows) * n2 > 2**32
        assert all(0 <= row < n1 for row in rows)
