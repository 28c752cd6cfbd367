"""`add_rms_norm`, `add_layer_norm` and RMSNorm with an offset in PyTorch: against PyTorch's own operations."""

import copy
import pickle

import pytest
import torch
from draws import paired
from nn.norms import Named
from torch.nn.functional import layer_norm, rms_norm

import normlab.nn
from normlab.nn import (
    AddLayerNorm,
    AddRMSNorm,
    GatedRMSNorm,
    HeadRMSNorm,
    RMSNorm,
    add_layer_norm,
    add_rms_norm,
    engine,
    head_rms_norm,
)

EPS = 1e-5
FORMS = [("rms", 0.0), ("rms", 1.0), ("layer", 0.0)]
FORM = pytest.mark.parametrize(("kind", "offset"), FORMS, ids=["rms", "rms with offset", "layer"])
MODE = pytest.mark.parametrize("memory_efficient", [False, True], ids=["saved", "recompute"])
ENGINE = pytest.mark.parametrize("run_by", ["auto", "simulator"])


def drawn(kind, dtype=torch.float64, x_dtype=None, shape=(2, 3, 24)):
    """x, residual, weight and, for a LayerNorm, bias; no weight is small."""
    random = torch.Generator().manual_seed(0)
    x, residual = (torch.randn(shape, generator=random).to(kind) for kind in (x_dtype or dtype, dtype))
    weight, bias = torch.rand(2, shape[-1], generator=random).to(dtype) + 0.5
    return [one.requires_grad_() for one in (x, residual, weight, bias)[: 4 if kind == "layer" else 3]]


def ours(kind, offset, memory_efficient, given):
    if kind == "layer":
        return add_layer_norm(*given, EPS, memory_efficient=memory_efficient)
    return add_rms_norm(*given, EPS, offset=offset, memory_efficient=memory_efficient)


def truth(kind, offset, given):
    """The same by PyTorch's norms, in float64 after the sum."""
    x, residual, weight, *bias = given
    new_residual = (x + residual).to(residual.dtype)
    wide, shape = new_residual.double(), x.shape[-1:]
    if kind == "layer":
        return layer_norm(wide, shape, weight.double(), bias[0].double(), EPS), new_residual
    return rms_norm(wide, shape, weight.double() + offset, EPS), new_residual


def gradients(results, given):
    random = torch.Generator().manual_seed(1)
    grads = [torch.randn(one.shape, generator=random).to(one.dtype) for one in results]
    return torch.autograd.grad(results, given, grads)


@FORM
@pytest.mark.parametrize(
    ("memory_efficient", "run_by", "dtype"),
    paired([False, True], ["auto", "simulator"], [torch.float32, torch.bfloat16, torch.float64]),
)
def test_results_and_gradients_are_pytorch_s(kind, offset, memory_efficient, run_by, dtype):
    given = drawn(kind, dtype)
    with engine(run_by):
        output, new_residual = ours(kind, offset, memory_efficient, given)
        found = gradients((output, new_residual), given)
    want, sums = truth(kind, offset, given)
    assert new_residual.dtype == output.dtype == dtype
    assert torch.equal(new_residual, sums)
    close = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(output.double(), want, rtol=close, atol=close)
    wanted = gradients((want.to(dtype), sums), given)
    assert torch.equal(found[0], found[1])  # one gradient, of x and of the residual
    loose = 8 if memory_efficient and dtype is torch.bfloat16 else 2  # x̂ has the output's rounding
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=loose * close, atol=loose * close)


@MODE
@pytest.mark.parametrize("run_by", ["auto", "simulator", "compiled"])
@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)], ids=str)
def test_x_and_the_residual_may_have_two_dtypes(memory_efficient, run_by, dtypes):
    x_dtype, dtype = dtypes
    given = drawn("rms", dtype, x_dtype)
    function = torch.compile(ours, fullgraph=True, backend="aot_eager") if run_by == "compiled" else ours
    with engine("auto" if run_by == "compiled" else run_by):
        output, new_residual = function("rms", 0.0, memory_efficient, given)
        found = gradients((output, new_residual), given)
    assert torch.equal(new_residual, truth("rms", 0.0, given)[1])
    assert [one.dtype for one in found] == [x_dtype, dtype, dtype]
    assert torch.equal(found[0], found[1].to(x_dtype))


@pytest.mark.parametrize("used", ["output", "new_residual"])
@MODE
@ENGINE
def test_a_result_that_nothing_uses_adds_nothing_to_the_gradients(used, memory_efficient, run_by):
    given = drawn("layer")
    index = ("output", "new_residual").index(used)
    with engine(run_by):
        found = torch.autograd.grad(
            ours("layer", 0.0, memory_efficient, given)[index].square().sum(), given, allow_unused=True
        )
    want = torch.autograd.grad(truth("layer", 0.0, given)[index].square().sum(), given, allow_unused=True)
    for mine, theirs in zip(found, want, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("autocast", [False, True])
@ENGINE
def test_the_exact_mode_has_the_other_modes_results_where_weights_are_small(kind, autocast, run_by):
    given = drawn(kind, torch.float32)
    with torch.no_grad():
        given[2][::5] = 1e-9
    with engine(run_by), torch.autocast("cpu", torch.bfloat16, autocast):
        want = ours(kind, 0.0, False, given)
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one) or one, lambda one: one):
            output, new_residual = ours(kind, 0.0, "exact", given)
        assert new_residual.data_ptr() not in [one.data_ptr() for one in kept]
        assert output.dtype is want[0].dtype
        assert torch.equal(new_residual, want[1])
        torch.testing.assert_close(output, want[0])
        found, wanted = gradients((output, new_residual), given), gradients(want, given)
    for mine, theirs in zip(found, wanted, strict=True):
        close = 3e-2 if autocast else 1e-5
        torch.testing.assert_close(mine, theirs, rtol=close, atol=close)


@FORM
@MODE
@pytest.mark.parametrize("compiled", [False, True])
def test_dropout_is_pytorch_s_before_the_sum(kind, offset, memory_efficient, compiled):
    given = drawn(kind, torch.float32, shape=(40, 24))
    plain = ours(kind, offset, memory_efficient, [torch.zeros_like(given[0]), *given[1:]])[1]

    def dropped(*given):
        if kind == "layer":
            return add_layer_norm(*given, EPS, dropout=0.4, memory_efficient=memory_efficient)
        return add_rms_norm(*given, EPS, offset=offset, dropout=0.4, memory_efficient=memory_efficient)

    function = torch.compile(dropped, fullgraph=True, backend="aot_eager") if compiled else dropped
    torch.manual_seed(3)
    output, new_residual = function(*given)
    torch.manual_seed(3)
    x = torch.nn.functional.dropout(given[0], 0.4)
    want = ours(kind, offset, memory_efficient, [x, *given[1:]])
    assert torch.equal(output, want[0])
    assert torch.equal(new_residual, want[1])
    left_out = new_residual == plain
    assert 0.3 < left_out.float().mean() < 0.5
    found = gradients((output, new_residual), given)
    assert torch.equal(found[0] == 0, left_out)
    for mine, theirs in zip(found, gradients(want, given), strict=True):
        assert torch.equal(mine, theirs)


def test_a_module_leaves_elements_out_in_training_alone():
    x, residual = torch.randn(2, 30, 8)
    for module in (AddRMSNorm(8, dropout=0.5), AddLayerNorm(8, dropout=0.5, memory_efficient="exact")):
        assert 0.2 < (module(x, residual)[1] == residual).float().mean() < 0.8
        assert torch.equal(module.eval()(x, residual)[1], x + residual)


@pytest.mark.parametrize(("memory_efficient", "saved"), [(False, 1), (True, 0)], ids=["saved", "recompute"])
def test_the_backward_keeps_one_array_of_rows_or_the_output_alone(memory_efficient, saved):
    given = drawn("rms", torch.float32)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        output, new_residual = ours("rms", 0.0, memory_efficient, given)
    rows = [one.data_ptr() for one in kept if one.shape == output.shape]
    assert rows == [(output if memory_efficient else new_residual).data_ptr()]
    assert rows.count(new_residual.data_ptr()) == saved


@pytest.mark.parametrize("run_by", ["auto", "simulator"])
def test_autocast_gives_the_output_its_dtype_and_leaves_the_residual_s(run_by):
    x, residual, weight = drawn("rms", torch.float32)
    with engine(run_by), torch.autocast("cpu", torch.bfloat16):
        for parameter in (weight, None):
            output, new_residual = add_rms_norm(x.bfloat16(), residual, parameter)
            assert (output.dtype, new_residual.dtype) == (torch.bfloat16, torch.float32)


def test_modules_have_the_state_dicts_of_torch_s_norms():
    rms, layer = AddRMSNorm(24, eps=EPS), AddLayerNorm(24, eps=EPS)
    x, residual, weight, bias = (one.detach() for one in drawn("layer", torch.float32))
    rms.load_state_dict({"weight": weight})
    layer.load_state_dict({"weight": weight, "bias": bias})
    for module, kind, parameters in ((rms, "rms", (weight,)), (layer, "layer", (weight, bias))):
        for same in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            output, new_residual = same(x, residual)
            want = truth(kind, 0.0, (x, residual, *parameters))
            torch.testing.assert_close(output, want[0].float())
            assert torch.equal(new_residual, want[1])


@pytest.mark.parametrize("make", [lambda: AddRMSNorm(24, offset=1.0), lambda: RMSNorm(24, offset=1.0)])
def test_a_module_with_an_offset_begins_with_gammas_of_1(make):
    module = make()
    x = torch.randn(3, 24)
    assert (module.weight == 0).all()
    output = module(x, torch.zeros_like(x))[0] if isinstance(module, AddRMSNorm) else module(x)
    torch.testing.assert_close(output, rms_norm(x, (24,), eps=1e-6))


@ENGINE
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_rms_norm_with_an_offset_is_gemma_s(run_by, dtype):
    module = RMSNorm(24, eps=EPS, offset=1.0, dtype=dtype)
    x, _, weight = drawn("rms", dtype)
    module.weight.data.copy_(weight)
    with engine(run_by):
        output = module(x)
        found = torch.autograd.grad(output.float().square().sum(), (x, module.weight))
    wide = x.float()
    gemma = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * (1 + module.weight.float())).to(dtype)
    want = torch.autograd.grad(gemma.float().square().sum(), (x, module.weight))
    close = 1e-5 if dtype is torch.float32 else 2e-2
    for mine, theirs in zip((output, *found), (gemma, *want), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=close, atol=close)


def heads_of(dtype):
    """Queries in a fused tensor, and the tensor."""
    fused = torch.randn(2, 3, 6 * 16, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    return fused[..., : 4 * 16].view(2, 3, 4, 16), fused


def head_formula(x, weight, offset):
    wide = x.double()
    xhat = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
    return (xhat * (weight.double() + offset)).to(weight.dtype)


@ENGINE
@pytest.mark.parametrize(
    ("per_head", "offset", "dtype"), paired([False, True], [0.0, 1.0], [torch.float32, torch.bfloat16, torch.float64])
)
def test_heads_of_a_fused_tensor_are_normalised_and_differentiated(run_by, per_head, offset, dtype):
    x, fused = heads_of(dtype)
    weight = (torch.rand((4, 16) if per_head else (16,)) + 0.5).to(dtype).requires_grad_()
    with engine(run_by):
        output = head_rms_norm(x, weight, EPS, offset=offset)
        found = gradients([output], (fused, weight))
    want = head_formula(x, weight, offset)
    close = {torch.float32: 4e-6, torch.bfloat16: 4e-2, torch.float64: 1e-12}[dtype]
    assert output.is_contiguous()
    for mine, theirs in zip((output, *found), (want, *gradients([want], (fused, weight))), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=close, atol=close)


@pytest.mark.parametrize("heads", [None, 4])
def test_heads_are_compiled_in_one_graph_and_have_second_derivatives(heads):
    x, fused = heads_of(torch.float64)
    module = HeadRMSNorm(16, EPS, heads=heads, offset=1.0, dtype=torch.float64)
    torch.nn.init.normal_(module.weight)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), module(x))
    assert torch.equal(*(torch.autograd.grad(one(x).square().sum(), fused)[0] for one in (compiled, module)))
    assert torch.autograd.gradgradcheck(lambda x, weight: head_rms_norm(x, weight, EPS), (x[:1, :1], module.weight))


def test_a_module_of_heads_begins_with_gammas_of_1():
    x, _ = heads_of(torch.float32)
    for heads in (None, 4):
        module = HeadRMSNorm(16, heads=heads, offset=1.0)
        assert (module.weight == 0).all()
        torch.testing.assert_close(module(x), rms_norm(x, (16,), eps=1e-6))


X = torch.zeros(2, 4)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: add_rms_norm([1.0], X), TypeError, r"add_rms_norm\(\): argument 'x' \(position 1\) must be Tensor"),
        (lambda: add_layer_norm(X, None), TypeError, r"add_layer_norm\(\): argument 'residual' \(position 2\)"),
        (lambda: add_layer_norm(X, torch.zeros(2, 5)), RuntimeError, "x to be of same shape as residual"),
        (lambda: add_layer_norm(X, X, torch.ones(5)), RuntimeError, "weight to be of same shape"),
        (lambda: add_rms_norm(X, X, torch.ones(5)), RuntimeError, "normalized_shape"),
        (lambda: add_rms_norm(X[0, 0], X[0, 0]), RuntimeError, "at least one dimension"),
        (lambda: add_rms_norm(X.double(), X), RuntimeError, "expect x to have scalar type of Float"),
        (lambda: add_rms_norm(X.int(), X.int()), NotImplementedError, "not implemented for 'Int'"),
        (lambda: add_rms_norm(X, X, eps="1"), TypeError, "'eps'"),
        (lambda: add_rms_norm(X, X, offset="1"), TypeError, "'offset'"),
        (lambda: add_rms_norm(X, X, memory_efficient="yes"), ValueError, "must be False, True or \"exact\", got 'yes'"),
        (lambda: add_rms_norm(X, X, offset=1.0, memory_efficient="exact"), ValueError, "needs an offset of 0, got 1.0"),
        (lambda: add_rms_norm(X, X, dropout=1.5), ValueError, "between 0 and 1, but got 1.5"),
        (lambda: add_rms_norm(X, X, dropout="0.1"), TypeError, "dropout must be float, not str"),
        (lambda: AddRMSNorm(4, dropout="0.1"), TypeError, "dropout must be float, not str"),
        (lambda: AddRMSNorm(4, offset=None), TypeError, "offset must be float, not NoneType"),
        (lambda: HeadRMSNorm(4, offset="1"), TypeError, "offset must be float, not str"),
        (lambda: AddLayerNorm(4, dropout=2), ValueError, "between 0 and 1, but got 2"),
        (lambda: AddLayerNorm(4, memory_efficient="yes"), ValueError, "must be False, True or \"exact\", got 'yes'"),
        (lambda: AddRMSNorm(4, memory_efficient=1), ValueError, 'must be False, True or "exact", got 1'),
        (lambda: AddRMSNorm(4, offset=1.0, memory_efficient="exact"), ValueError, "needs an offset of 0, got 1.0"),
        (lambda: AddLayerNorm(8.0), TypeError, "normalized_shape of a norm of x \\+ residual must be an int, got 8.0"),
        (lambda: RMSNorm(4, offset=1.0)("x"), TypeError, r"argument 'input' \(position 1\) must be Tensor, not str"),
        (lambda: head_rms_norm(X, X.long()), RuntimeError, "scalar type of Float, but got Long"),
        (lambda: head_rms_norm(X, X.double()), RuntimeError, "scalar type of Float, but got Double"),
        (lambda: head_rms_norm(X.bfloat16(), X.half()), RuntimeError, "scalar type of BFloat16, but got Half"),
        (lambda: head_rms_norm(X, X, offset="1"), TypeError, "'offset'"),
        (lambda: head_rms_norm(X, torch.ones(3, 4)), RuntimeError, r"shape \(head_dim,\) or \(heads, head_dim\)"),
        (lambda: head_rms_norm(None), TypeError, r"head_rms_norm\(\): argument 'x' \(position 1\)"),
        (lambda: AddRMSNorm((3, 4)), ValueError, "over the last dimension alone"),
        (lambda: RMSNorm((3, 4), offset=1.0), ValueError, "over one dimension"),
        (lambda: add_rms_norm(X, X.to("meta")), RuntimeError, "on the same device"),
    ],
)
def test_a_wrong_argument_is_told_before_anything_is_computed(call, error, said):
    with pytest.raises(error, match=said):
        call()


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (AddRMSNorm, 2),
        (AddLayerNorm, 2),
        (HeadRMSNorm, 1),
        (lambda size, **options: HeadRMSNorm(size, heads=3, **options), 1),
        (lambda size, **options: RMSNorm(size, offset=1.0, **options), 1),
    ],
    ids=["add rms", "add layer", "head", "heads", "offset"],
)
def test_a_module_without_a_weight_takes_its_own_size_alone(make, inputs):
    module = make(8, elementwise_affine=False)
    module(*[torch.zeros(2, 3, 8)] * inputs)
    for shape in ((2, 3, 16), (2, 3, 1), (2, 2, 4), ()):
        with pytest.raises((RuntimeError, ValueError), match=r"normalized_shape|dimension"):
            module(*[torch.zeros(shape)] * inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "make", [AddRMSNorm, HeadRMSNorm, GatedRMSNorm, lambda *given, **named: RMSNorm(*given, **named, offset=1.0)]
)
def test_without_an_eps_it_is_that_of_torch_s_norm(make, dtype):
    module = make(8, None, dtype=dtype)
    torch.nn.init.ones_(module.weight)
    x = torch.full((2, 8), 2e-4 if dtype != torch.float64 else 1e-8, dtype=dtype)
    found = module(*[x, torch.ones_like(x)][: 2 if isinstance(module, (AddRMSNorm, GatedRMSNorm)) else 1])
    if isinstance(module, AddRMSNorm):
        found, x = found
    want = torch.nn.RMSNorm(8, None, dtype=dtype)(x)
    if isinstance(module, GatedRMSNorm):
        want = want * torch.nn.functional.silu(torch.ones_like(x))
    torch.testing.assert_close(found, want * 2 if type(module) is RMSNorm else want)


def test_autocast_rounds_a_weight_per_head_as_it_rounds_another():
    x, weight = torch.randn(2, 3, 4), torch.randn(3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert head_rms_norm(x, weight).dtype == head_rms_norm(x, weight[0]).dtype == torch.bfloat16


def test_a_module_shows_the_options_that_are_not_the_defaults():
    assert repr(AddRMSNorm(4)) == "AddRMSNorm((4,), eps=1e-06, elementwise_affine=True)"
    shown = repr(AddRMSNorm(4, offset=1.0, dropout=0.1, memory_efficient=True))
    assert shown.endswith("=True, offset=1.0, dropout=0.1, memory_efficient=True)")
    assert repr(AddLayerNorm(4, memory_efficient="exact")).endswith(", memory_efficient='exact')")
    assert repr(HeadRMSNorm(4, offset=1.0)).endswith(", offset=1.0)")


def test_a_torch_function_of_a_tensor_gets_the_call():
    named = torch.zeros(2, 4).as_subclass(Named)
    assert add_rms_norm(X, named, offset=1.0) == (add_rms_norm, 4, {"offset": 1.0, "memory_efficient": False})
    assert add_layer_norm(named, X) == (add_layer_norm, 5, {"memory_efficient": False})
    assert {"add_rms_norm", "add_layer_norm", "AddRMSNorm", "AddLayerNorm"} <= set(normlab.nn.__all__)
