"""`gated_rms_norm` in PyTorch: against the formulas of Mamba-2 and Qwen3-Next by PyTorch's own operations."""

import copy
import pickle

import pytest
import torch
from draws import paired
from nn.norms import Named
from torch.nn.functional import rms_norm, silu

import normlab.nn
from normlab.nn import GatedRMSNorm, engine, gated_rms_norm

EPS = 1e-5
MODES = pytest.mark.parametrize(
    ("before", "memory_efficient"), [(True, False), (True, True), (False, False)], ids=["saved", "recompute", "gated x"]
)
ENGINE = pytest.mark.parametrize("run_by", ["auto", "simulator"])


def drawn(dtype=torch.float64, shape=(2, 3, 24), weight=True):
    """x, a gate away from 0 and a weight."""
    random = torch.Generator().manual_seed(0)
    x, gate = torch.randn(2, *shape, generator=random)
    given = [x, gate + 0.3 * gate.sign(), torch.rand(shape[-1], generator=random) + 0.5][: 3 if weight else 2]
    return [one.to(dtype).requires_grad_() for one in given]


def ours(before, memory_efficient, given):
    weight = given[2] if len(given) > 2 else None
    return gated_rms_norm(*given[:2], weight, EPS, norm_before_gate=before, memory_efficient=memory_efficient)


def truth(before, given):
    """Qwen3NextRMSNormGated's forward, and mamba_ssm's rms_norm_ref with a gate, in float64."""
    x, gate, *weight = (one.double() for one in given)
    if before:
        return rms_norm(x, x.shape[-1:], *weight, eps=EPS) * silu(gate)
    return rms_norm(x * silu(gate), x.shape[-1:], *weight, eps=EPS)


def gradients(output, given):
    grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output.dtype)
    return torch.autograd.grad(output, given, grad)


@MODES
@pytest.mark.parametrize(
    ("run_by", "weight", "dtype"),
    paired(["auto", "simulator"], [True, False], [torch.float32, torch.bfloat16, torch.float64]),
)
def test_output_and_gradients_are_pytorch_s(before, memory_efficient, run_by, weight, dtype):
    given = drawn(dtype, weight=weight)
    with engine(run_by):
        output = ours(before, memory_efficient, given)
        found = gradients(output, given)
    want = truth(before, given)
    close = {torch.float32: 4e-6, torch.bfloat16: 2e-2, torch.float64: 1e-12}[dtype]
    assert output.dtype == dtype
    torch.testing.assert_close(output.double(), want, rtol=close, atol=close)
    loose = 4 if memory_efficient else 2  # x̂ has the output's rounding
    for mine, theirs in zip(found, gradients(want.to(dtype), given), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=loose * close, atol=loose * close)


@MODES
@ENGINE
def test_a_weight_of_another_dtype_gives_the_output_its_dtype(before, memory_efficient, run_by):
    x, gate, weight = drawn(torch.float32)
    given = x.detach().bfloat16().requires_grad_(), gate.detach().bfloat16().requires_grad_(), weight
    with engine(run_by):
        output = ours(before, memory_efficient, given)
        found = gradients(output, given)
    assert output.dtype == torch.float32
    for mine, theirs in zip(found, gradients(truth(before, given).float(), given), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)


@MODES
@pytest.mark.parametrize("weight", [True, False], ids=["weight", "no weight"])
def test_both_derivatives_are_the_slopes_of_the_forward(before, memory_efficient, weight):
    given = drawn(shape=(3, 6), weight=weight)

    def function(*given):
        return ours(before, memory_efficient, given)

    assert torch.autograd.gradcheck(function, given)
    assert torch.autograd.gradgradcheck(function, given)


@pytest.mark.parametrize("memory_efficient", [False, True], ids=["saved", "recompute"])
def test_the_backward_keeps_the_gate_and_either_x_or_the_output(memory_efficient):
    given, kept = drawn(torch.float32), []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        output = ours(True, memory_efficient, given)
    rows = {one.data_ptr() for one in kept if one.shape == output.shape}
    assert rows == {(output if memory_efficient else given[0]).data_ptr(), given[1].data_ptr()}


@MODES
def test_compiled_in_one_graph_it_has_the_same_bits(before, memory_efficient):
    given = drawn(torch.float32)

    def function(*given):
        return ours(before, memory_efficient, given)

    results = []
    for one in (torch.compile(function, fullgraph=True, backend="aot_eager"), function):
        output = one(*given)
        results.append([output, *gradients(output, given)])
    for mine, theirs in zip(*results, strict=True):
        assert torch.equal(mine, theirs)


@MODES
@pytest.mark.parametrize("weight", [True, False], ids=["weight", "no weight"])
def test_the_operators_keep_what_pytorch_asks_of_operators(before, memory_efficient, weight):
    given = [*drawn(torch.float32, weight=weight), *[None] * (not weight)]
    torch.library.opcheck(torch.ops.normlab.gated_norm.default, (*given, EPS, before, memory_efficient))


def test_it_is_exported_as_one_operator():
    program = torch.export.export(GatedRMSNorm(24), tuple(one.detach() for one in drawn(torch.float32)[:2]))
    assert [node.target for node in program.graph.nodes].count(torch.ops.normlab.gated_norm.default) == 1


@pytest.mark.filterwarnings("error::torch.jit.TracerWarning")
@pytest.mark.parametrize("trace", [torch.fx.symbolic_trace, None], ids=["fx", "jit"])
def test_traces_compute_the_same(trace):
    x, gate = (one.detach() for one in drawn(torch.float32)[:2])
    module = GatedRMSNorm(24)
    traced = trace(module) if trace else torch.jit.trace(module, (x, gate))
    torch.testing.assert_close(traced(x[:1], gate[:1]), module(x[:1], gate[:1]))


@pytest.mark.parametrize("before", [True, False])
def test_transforms_of_torch_func_go_through(before):
    x, gate, weight = (one.detach() for one in drawn())
    rows = torch.func.vmap(lambda x, gate: ours(before, False, (x, gate, weight)))(x, gate)
    same, tangent = torch.func.jvp(lambda gate: ours(before, False, (x, gate, weight)), (gate,), (torch.ones_like(x),))
    step = 1e-6
    slope = (truth(before, (x, gate + step, weight)) - truth(before, (x, gate - step, weight))) / (2 * step)
    torch.testing.assert_close(rows, truth(before, (x, gate, weight)))
    torch.testing.assert_close(same, rows)
    torch.testing.assert_close(tangent, slope, rtol=1e-6, atol=1e-8)


@ENGINE
def test_autocast_gives_the_output_its_dtype(run_by):
    x, gate, weight = drawn(torch.float32)
    with engine(run_by), torch.autocast("cpu", torch.bfloat16):
        for parameter in (weight, None):
            output = gated_rms_norm(x, gate, parameter)
            assert output.dtype == torch.bfloat16
            assert [one.dtype for one in gradients(output, [x, gate])] == [torch.float32] * 2


def test_a_module_has_the_state_dict_of_torch_s_norm():
    x, gate, weight = (one.detach() for one in drawn(torch.float32))
    for before in (True, False):
        module = GatedRMSNorm(24, eps=EPS, norm_before_gate=before)
        assert (module.weight == 1).all()
        module.load_state_dict({"weight": weight})
        for same in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            torch.testing.assert_close(same(x, gate), truth(before, (x, gate, weight)).float())


@ENGINE
def test_a_gate_that_is_a_slice_of_a_projection_is_differentiated(run_by):
    projected = torch.randn(3, 48, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with engine(run_by):
        found = gradients(gated_rms_norm(projected[:, :24], projected[:, 24:], eps=EPS), [projected])
    want = gradients(truth(True, (projected[:, :24], projected[:, 24:])).float(), [projected])
    torch.testing.assert_close(found[0], want[0], rtol=1e-5, atol=1e-5)


@ENGINE
def test_a_gate_of_0_gets_its_gradient_from_x(run_by):
    x, _, weight = drawn(torch.float32)
    gate = torch.zeros_like(x, requires_grad=True)
    with engine(run_by):
        output = gated_rms_norm(x, gate, weight, EPS)
        (found,) = torch.autograd.grad(output.sum(), gate)
    assert (output == 0).all()
    torch.testing.assert_close(found, rms_norm(x, (24,), weight, EPS) / 2)


def test_rows_without_columns_and_no_rows_give_empty_results():
    for shape in ((3, 0), (0, 4)):
        x, gate = torch.zeros(2, *shape, requires_grad=True)
        output = gated_rms_norm(x, gate, torch.ones(shape[-1]))
        assert output.shape == shape
        assert torch.autograd.grad(output.sum(), x)[0].shape == shape


X = torch.zeros(2, 4)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (
            lambda: gated_rms_norm([1.0], X),
            TypeError,
            r"gated_rms_norm\(\): argument 'x' \(position 1\) must be Tensor",
        ),
        (lambda: gated_rms_norm(X, None), TypeError, r"argument 'gate' \(position 2\) must be Tensor"),
        (lambda: gated_rms_norm(X, X[:1]), RuntimeError, r"gate of shape \[1, 4\] and x of shape \[2, 4\]"),
        (lambda: gated_rms_norm(X, X, torch.ones(5)), RuntimeError, "normalized_shape"),
        (lambda: gated_rms_norm(X[0, 0], X[0, 0]), RuntimeError, "at least one dimension"),
        (lambda: gated_rms_norm(X, X.half()), RuntimeError, "gate to have scalar type of Float, as x, but got Half"),
        (lambda: gated_rms_norm(X, X.to("meta")), RuntimeError, "on the same device"),
        (lambda: gated_rms_norm(X.int(), X.int()), NotImplementedError, "not implemented for 'Int'"),
        (lambda: gated_rms_norm(X, X, eps="1"), TypeError, "'eps'"),
        (lambda: gated_rms_norm(X, X, norm_before_gate=2), ValueError, "norm_before_gate must be True or False, got 2"),
        (lambda: gated_rms_norm(X, X, memory_efficient="exact"), ValueError, "must be True or False, got 'exact'"),
        (
            lambda: gated_rms_norm(X, X, norm_before_gate=False, memory_efficient=True),
            ValueError,
            "needs norm_before_gate=True, got norm_before_gate=False",
        ),
        (lambda: GatedRMSNorm(4, norm_before_gate=False, memory_efficient=True), ValueError, "needs norm_before_gate"),
        (lambda: GatedRMSNorm((3, 4)), ValueError, "a gated norm goes over the last dimension alone"),
    ],
)
def test_a_wrong_argument_is_told_before_anything_is_computed(call, error, said):
    with pytest.raises(error, match=said):
        call()


def test_a_torch_function_of_a_tensor_gets_the_call():
    named = torch.zeros(2, 4).as_subclass(Named)
    options = {"norm_before_gate": False, "memory_efficient": False}
    assert gated_rms_norm(X, named, norm_before_gate=False) == (gated_rms_norm, 4, options)
    assert {"gated_rms_norm", "GatedRMSNorm"} <= set(normlab.nn.__all__)
