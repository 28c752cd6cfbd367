"""Norms in compiled graphs as formulas: within the oracle's bounds, no operator in the graph, and the tensor saved."""

import copy

import numpy as np
import pytest
import torch
from draws import paired
from functorch.compile import make_boxed_compiler
from kernels.test_edges import random_case
from ml_dtypes import bfloat16
from nn.decoder_layers import GemmaRMSNorm, LlamaLayer
from nn.norms import array, counts_saved, hold_to_bounds, tensor
from torch._dynamo.backends.common import aot_autograd

from normlab import nn
from normlab.nn import FusedLayerNorm, FusedRMSNorm, fused_by_compiler, replace_norms

pytestmark = pytest.mark.usefixtures("forget_compiled")
MODES = (False, True, "exact")


def traced(function):
    """The function compiled, and the names of all operators in its graphs."""
    names = []

    def keep(graph, _):
        names.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    boxed = make_boxed_compiler(keep)
    return torch.compile(function, fullgraph=True, backend=aot_autograd(fw_compiler=boxed, bw_compiler=boxed)), names


def gradients(function, x):
    x = x.detach().clone().requires_grad_()
    output = function(x)
    return output, *torch.autograd.grad(output.float().pow(2).sum(), x)


@pytest.mark.parametrize(("mode", "rms", "dtype"), paired(MODES, [False, True], [np.float32, bfloat16]))
def test_formulas_in_a_graph_are_within_the_oracle_s_bounds(mode, rms, dtype):
    case = random_case(7, 40, dtype, rms)
    leaves = [tensor(values, requires_grad=True) for values in (case.x, case.weight, case.bias)]
    eps, n2 = case.eps, case.n2  # Dynamo turns NumPy's arrays into tensors, and knows no bfloat16

    def norm(x, weight, bias):
        return nn.rms_norm(x, n2, weight, eps, mode) if rms else nn.layer_norm(x, n2, weight, bias, eps, mode)

    compiled, names = traced(norm)
    with fused_by_compiler():
        output = compiled(*leaves)
        output.backward(tensor(case.grad_output))
    assert names
    assert not [name for name in names if "normlab" in name]
    # a graph cannot count the columns at risk: it starts from the input
    held = False if mode == "exact" else mode
    hold_to_bounds(case, held, array(output), tuple(None if leaf is None else array(leaf.grad) for leaf in leaves))


@pytest.mark.parametrize(("fuse", "mode"), [(False, True), *((True, mode) for mode in MODES)])
def test_layers_and_norms_with_an_offset_are_formulas_too(fuse, mode):
    torch.manual_seed(0)
    model = torch.nn.Sequential(LlamaLayer(8), GemmaRMSNorm(8)).double().float()
    old = copy.deepcopy(model)
    replace_norms(model, mode, fuse_residual=fuse)
    x = torch.randn(2, 3, 8)
    compiled, names = traced(model)
    with fused_by_compiler():
        torch.testing.assert_close(gradients(compiled, x), gradients(old, x), rtol=1e-4, atol=1e-4)
    assert not [name for name in names if "normlab" in name]


def test_sums_are_formulas_too():
    x, residual, weight = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8)
    compiled, names = traced(lambda x: nn.add_rms_norm(x, residual, weight, offset=1.0)[0])
    with fused_by_compiler():
        found = gradients(compiled, x)
    assert not [name for name in names if "normlab" in name]
    torch.testing.assert_close(found, gradients(lambda x: nn.add_rms_norm(x, residual, weight, offset=1.0)[0], x))


@pytest.mark.parametrize("kind", [FusedLayerNorm, FusedRMSNorm])
def test_the_output_is_saved_in_place_of_the_input(kind):
    """As `test_custom` asks of the operators: 2 x is another tensor than the input and the output."""
    backend, whole = counts_saved((4, 8))
    for mode in MODES:
        norm = kind(8, memory_efficient=mode)
        with fused_by_compiler():
            compiled = torch.compile(lambda x, norm=norm: norm(2 * x), fullgraph=True, backend=backend)
            compiled(torch.randn(4, 8, requires_grad=True)).sum().backward()
    assert whole[1] == 1
    assert whole[0] == whole[2] > 1  # this compiler keeps what each operation needs; Inductor keeps the input


def test_an_exact_norm_s_gradients_are_right_where_a_weight_is_0():
    norm = FusedRMSNorm(8, memory_efficient="exact")
    with torch.no_grad():
        norm.weight[::2] = 0
    x, eager = torch.randn(4, 8), torch.nn.RMSNorm(8, norm.eps)
    eager.weight = norm.weight
    for one in (norm, eager):
        one.weight.grad = None
    with fused_by_compiler():
        torch.compile(norm, backend="aot_eager")(x).pow(2).add(1).prod(-1).sum().backward()
    found, norm.weight.grad = norm.weight.grad, None
    eager(x).pow(2).add(1).prod(-1).sum().backward()
    torch.testing.assert_close(found, eager.weight.grad)


def test_second_derivatives_are_those_of_the_formulas_or_an_error():
    x, norm = torch.randn(3, 8, requires_grad=True), FusedRMSNorm(8)

    def second(function):
        (first,) = torch.autograd.grad((function(x) + x.square()).pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), x)[0]

    with fused_by_compiler():
        torch.testing.assert_close(second(torch.compile(norm, backend="eager", fullgraph=True)), second(norm))
        norm.memory_efficient = True
        with pytest.raises(RuntimeError, match="double backward"):
            second(torch.compile(norm, backend="aot_eager", fullgraph=True))


def test_outside_of_the_block_and_eager_calls_in_it_are_as_ever():
    norm, x = FusedLayerNorm(8), torch.randn(4, 8)
    want = norm(x)
    with fused_by_compiler():
        assert torch.equal(norm(x), want)
        compiled, names = traced(norm)
        compiled(x)
    assert not [name for name in names if "normlab" in name]
    compiled(x)  # compiled anew: the block has ended
    assert [name for name in names if "normlab" in name]
