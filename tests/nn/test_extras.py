"""What norms of x + residual, gated and modulated norms promise alike in PyTorch: derivatives, graphs, transforms."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import pytest
import torch
from nn import test_add_norm as add
from nn import test_gated_norm as gated
from nn import test_modulated_norm as modulated
from torch.utils._python_dispatch import TorchDispatchMode

from normlab.nn import (
    AddLayerNorm,
    AddRMSNorm,
    GatedRMSNorm,
    ModulatedLayerNorm,
    engine,
    gated_rms_norm,
    modulated_layer_norm,
)

ADD, GATED, MODULATED = (getattr(torch.ops.normlab, f"{name}_norm").default for name in ("add", "gated", "modulated"))


class Extra(NamedTuple):
    """A norm that takes one array or two more than a plain norm, in one of its modes.

    drawn: (dtype, shape) -> the function's tensors. truth: of these tensors, by PyTorch's own norms in float64.
    options: what the operator takes after the tensors; None first for a parameter that is absent.
    """

    function: Callable[..., Any]
    drawn: Callable[..., list[torch.Tensor]]
    truth: Callable[..., Any]
    operator: Any
    options: tuple[Any, ...]


def of_sum(kind, offset, memory_efficient):
    return Extra(
        lambda *given: add.ours(kind, offset, memory_efficient, given),
        lambda dtype, shape=(2, 3, 24): add.drawn(kind, dtype, shape=shape),
        lambda *given: add.truth(kind, offset, given),
        ADD,
        (*[None] * (kind == "rms"), add.EPS, kind == "rms", offset, memory_efficient),
    )


def of_gate(before, memory_efficient, weight):
    return Extra(
        lambda *given: gated.ours(before, memory_efficient, given),
        lambda dtype, shape=(2, 3, 24): gated.drawn(dtype, shape, weight),
        lambda *given: gated.truth(before, given),
        GATED,
        (*[None] * (not weight), gated.EPS, before, memory_efficient),
    )


EXTRAS = {
    **{f"{kind}-{offset}-{mode}": of_sum(kind, offset, mode) for kind, offset in add.FORMS for mode in (False, True)},
    **{
        f"{mode}-{'weight' if weight else 'none'}": of_gate(*flags, weight)
        for mode, flags in {"saved": (True, False), "recompute": (True, True), "gated x": (False, False)}.items()
        for weight in (True, False)
    },
    "modulated": Extra(
        lambda *given: modulated_layer_norm(*given, modulated.EPS),
        modulated.drawn,
        modulated.truth,
        MODULATED,
        (modulated.EPS,),
    ),
}
ENGINE = pytest.mark.parametrize("run_by", ["auto", "simulator"])
EACH = pytest.mark.parametrize("extra", EXTRAS.values(), ids=EXTRAS)
MODULES = pytest.mark.parametrize(
    ("make", "extra"),
    [
        (lambda: AddRMSNorm(24), EXTRAS["rms-0.0-False"]),
        (lambda: AddLayerNorm(24), EXTRAS["rms-0.0-False"]),
        (lambda: GatedRMSNorm(24), EXTRAS["saved-none"]),
        (ModulatedLayerNorm, EXTRAS["modulated"]),
    ],
    ids=["add rms", "add layer", "gated", "modulated"],
)


def of_module(extra):
    """The tensors that the module takes: those with rows, and those of samples."""
    return tuple(one.detach() for one in extra.drawn(torch.float32) if one.dim() > 1)


def results(found):
    return list(found) if isinstance(found, tuple) else [found]


@EACH
@pytest.mark.parametrize("shape", [(2, 3, 6), (3, 6)], ids=str)
def test_both_derivatives_are_the_slopes_of_the_forward(extra, shape):
    given = extra.drawn(torch.float64, shape)
    assert torch.autograd.gradcheck(extra.function, given)
    assert torch.autograd.gradgradcheck(extra.function, given)


@EACH
def test_compiled_in_one_graph_it_has_the_same_bits(extra):
    given, found = extra.drawn(torch.float32), []
    for function in (torch.compile(extra.function, fullgraph=True, backend="aot_eager"), extra.function):
        outputs = results(function(*given))
        found.append([*outputs, *add.gradients(outputs, given)])
    for mine, theirs in zip(*found, strict=True):
        assert torch.equal(mine, theirs)


@EACH
def test_the_operators_keep_what_pytorch_asks_of_operators(extra):
    torch.library.opcheck(extra.operator, (*extra.drawn(torch.float32), *extra.options))


class FakesChecked(TorchDispatchMode):
    """Compares the shapes, strides and dtypes of normlab's operators with those of their fakes, in each call."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "normlab":
            torch.library.opcheck(function, args, kwargs, test_utils=("test_schema", "test_faketensor"))
        return function(*args, **(kwargs or {}))


@EACH
@pytest.mark.parametrize("order", [(3, 2, 1, 0), (0, 2, 1, 3), (0, 1, 3, 2)], ids=str)
@pytest.mark.parametrize("strided", ["inputs", "gradients"])
def test_results_and_gradients_are_contiguous_as_the_operators_fakes_promise(extra, strided, order):
    def in_memory(one):
        """The same tensor with its dimensions in another order in memory, if it has two or four."""
        there = {4: order, 2: (1, 0)}.get(one.dim(), range(one.dim()))
        return one.detach().permute(*there).contiguous().permute(*torch.tensor(there).argsort().tolist())

    given = extra.drawn(torch.float32, (2, 3, 4, 6))
    if strided == "inputs":
        given = [in_memory(one).requires_grad_() for one in given]
    with FakesChecked():
        by_operator = [one for one in extra.operator(*given, *extra.options) if one.requires_grad]
    for outputs in (results(extra.function(*given)), by_operator):
        grads = [in_memory(one) if strided == "gradients" else torch.ones_like(one) for one in outputs]
        with FakesChecked() if outputs is by_operator else nullcontext():
            found = torch.autograd.grad(outputs, given, grads)
        assert all(one.is_contiguous() for one in (*outputs, *found))


@MODULES
def test_it_is_exported_as_one_operator(make, extra):
    program = torch.export.export(make(), of_module(extra))
    assert [node.target for node in program.graph.nodes].count(extra.operator) == 1


@pytest.mark.filterwarnings("error::torch.jit.TracerWarning")
@pytest.mark.parametrize("trace", [torch.fx.symbolic_trace, None], ids=["fx", "jit"])
@MODULES
def test_traces_compute_the_same(make, extra, trace):
    given, module = of_module(extra), make()
    traced = trace(module) if trace else torch.jit.trace(module, given)
    fewer = tuple(one[:1] for one in given)
    for mine, theirs in zip(results(traced(*fewer)), results(module(*fewer)), strict=True):
        torch.testing.assert_close(mine, theirs)


@EACH
def test_transforms_of_torch_func_go_through_whatever_the_engine(extra):
    x, other, *rest = (one.detach() for one in extra.drawn(torch.float64))
    ones, step = (torch.ones_like(x), torch.ones_like(other)), 1e-6

    def function(x, other):
        return extra.function(x, other, *rest)

    with engine("simulator"):
        batches = torch.func.vmap(function)(torch.stack([x, x + 1]), torch.stack([other, other + 1]))
        same, tangents = torch.func.jvp(function, (x, other), ones)
    want, moved, up, down = (results(extra.truth(x + by, other + by, *rest)) for by in (0, 1, step, -step))
    for batch, mine, tangent, *wanted in zip(
        results(batches), results(same), results(tangents), want, moved, up, down, strict=True
    ):
        torch.testing.assert_close(batch, torch.stack(wanted[:2]))
        torch.testing.assert_close(mine, wanted[0])
        torch.testing.assert_close(tangent, (wanted[2] - wanted[3]) / (2 * step), rtol=1e-6, atol=1e-8)


@EACH
@ENGINE
def test_empty_tensors_give_empty_results_and_gradients_of_the_arguments_shapes(extra, run_by):
    for shape in ((2, 3, 0), (0, 3, 4), (2, 0, 4)):
        given = extra.drawn(torch.float32, shape)
        with engine(run_by):
            outputs = results(extra.function(*given))
            found = add.gradients(outputs, given)
        assert [one.shape for one in outputs] == [shape] * len(outputs)
        assert [one.shape for one in found] == [one.shape for one in given]


@ENGINE
@pytest.mark.parametrize(
    ("function", "extra"),
    [
        (gated_rms_norm, EXTRAS["saved-weight"]),
        (gated_rms_norm, EXTRAS["saved-none"]),
        (modulated_layer_norm, EXTRAS["modulated"]),
    ],
    ids=["gated", "gated without weight", "modulated"],
)
def test_autocast_gives_the_output_its_dtype(function, extra, run_by):
    given = extra.drawn(torch.float32)
    with engine(run_by), torch.autocast("cpu", torch.bfloat16):
        output = function(*given)
        assert output.dtype == torch.bfloat16
        assert [one.dtype for one in gated.gradients(output, given)] == [torch.float32] * len(given)
