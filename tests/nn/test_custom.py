"""The operators in graphs: torch.compile, torch.export, fake tensors; and torch's own checks of them."""

import warnings
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from draws import paired
from functorch.compile import make_boxed_compiler
from nn.norms import counts_saved
from torch._dynamo import compiled_autograd
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck

from normlab import nn
from normlab.nn import custom

pytestmark = pytest.mark.usefixtures("forget_compiled")
NORMS = [nn.FusedLayerNorm, nn.FusedRMSNorm]
OPERATORS = {nn.FusedLayerNorm: "normlab::layer_norm", nn.FusedRMSNorm: "normlab::rms_norm"}
EXACT = "normlab::exact_norm"


@pytest.mark.parametrize(
    ("dtypes", "memory_efficient", "with_weight"),  # without it the other norms have none
    [
        ((torch.float32, torch.bfloat16), False, True),
        ((torch.float32, torch.bfloat16), True, False),
        ((torch.float32, torch.float32), True, True),
    ],
)
def test_opcheck(dtypes, memory_efficient, with_weight):
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5, dtype=dtypes[0], requires_grad=True).transpose(0, 1)
    weight, bias = (torch.randn(5, dtype=dtypes[1], requires_grad=True) for _ in range(2))
    how = 1e-5, memory_efficient
    opcheck(torch.ops.normlab.layer_norm.default, (x, [5], weight if with_weight else None, bias, *how))
    opcheck(torch.ops.normlab.rms_norm.default, (x, [5], weight, *how) if with_weight else (x, [4, 5], None, *how))
    saved = x.detach().to(dtypes[memory_efficient])
    statistics = torch.rand(4, 3)
    arguments = (
        saved,
        statistics,
        statistics,
        None,
        None,
        [5],
        weight.detach(),
        bias.detach(),
        1e-5,
        False,
        memory_efficient,
    )
    grad_output = torch.randn(4, 3, 5, dtype=dtypes[1])
    opcheck(torch.ops.normlab.norm_backward.default, (grad_output, *arguments, dtypes[0]))


def test_opcheck_of_the_exact_mode():
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(shape, requires_grad=True) for shape in ((3, 4, 5), (5,), (5,)))
    with torch.no_grad():
        weight[1], bias[2] = 0, 100
    for rms, given in ((False, (weight, bias)), (True, (None, None))):
        opcheck(torch.ops.normlab.exact_norm.default, (x, [5], *given, 1e-5, rms, *given))


@pytest.mark.parametrize("memory_efficient", [False, True, "exact"])
@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
def test_operators_have_second_derivatives(rms, memory_efficient):
    torch.manual_seed(0)
    x, weight = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 4), (4,)))
    bias = None if rms else torch.randn(4, dtype=torch.float64, requires_grad=True)
    if memory_efficient == "exact":
        with torch.no_grad():
            weight[2] = 0

    def norm(x, weight, bias=None):
        return custom.norm(x, (4,), weight, bias, 1e-5, rms, memory_efficient, (weight, bias))

    given = (x, weight) if rms else (x, weight, bias)
    torch.autograd.gradcheck(norm, given)
    torch.autograd.gradgradcheck(norm, given)


def model(kind, memory_efficient, **options) -> torch.nn.Module:
    """Two norms between linear layers, with random parameters; exact: with a weight of 0."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 8), kind(8, memory_efficient=memory_efficient, **options)]
    made = torch.nn.Sequential(*layers, torch.nn.Linear(8, 8), kind(8, memory_efficient=memory_efficient, **options))
    for parameter in made.parameters():
        torch.nn.init.uniform_(parameter, 0.5, 1.5)
    if memory_efficient == "exact":
        with torch.no_grad():
            made[1].weight[3] = 0
    return made


def gradients(module, x) -> list[torch.Tensor]:
    module.zero_grad()
    x = x.clone().requires_grad_()
    output = module(x)
    output.square().sum().backward()
    return [output.detach(), x.grad, *(parameter.grad.clone() for parameter in module.parameters())]


def operators(graph: torch.fx.GraphModule) -> list[str]:
    return [node.target._name for node in graph.graph.nodes if "normlab" in str(node.target)]


@pytest.mark.parametrize(
    ("kind", "memory_efficient"),
    [  # each operator, and what it saves; exported are the others, too
        (nn.FusedLayerNorm, True),
        (nn.FusedRMSNorm, False),
        (nn.FusedLayerNorm, "exact"),
        (nn.FusedRMSNorm, "exact"),
    ],
)
def test_compile_keeps_the_operators_in_both_graphs_and_shapes_dynamic(kind, memory_efficient):
    graphs = []

    def keep(graph, _):
        graphs.append(operators(graph))
        return graph

    plain = model(kind, memory_efficient)
    compiled = torch.compile(
        plain, fullgraph=True, dynamic=True, backend=aot_autograd(fw_compiler=make_boxed_compiler(keep))
    )
    for rows in (3, 7):
        x = torch.randn(2, rows, 8)
        for one, other in zip(gradients(compiled, x), gradients(plain, x), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    forward, backward = OPERATORS[kind], "normlab::norm_backward"
    if memory_efficient == "exact":
        forward, backward = EXACT + "_held", EXACT + "_held_backward"
    assert graphs == [[forward] * 2, [backward] * 2]  # and no more: nothing was compiled again


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_handle_may_stay_on_the_host_but_not_be_copied(backend):
    plain, x = model(nn.FusedRMSNorm, "exact"), torch.randn(3, 8)
    compiled = torch.compile(plain, backend=backend, fullgraph=True)
    with torch.autograd.graph.save_on_cpu():
        for one, other in zip(gradients(compiled, x), gradients(plain, x), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    copied = torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda saved: saved)
    with copied, pytest.raises(RuntimeError, match="got a copy of its handle in the backward"):
        gradients(compiled, x)


def test_a_second_derivative_of_a_compiled_exact_norm_is_refused():
    norm, x = nn.FusedRMSNorm(8, memory_efficient="exact"), torch.randn(3, 8, requires_grad=True)
    output = torch.compile(norm, backend="eager")(x)
    with pytest.raises(NotImplementedError, match="has no second derivatives: use memory_efficient=False"):
        torch.autograd.grad(output.sum(), x, create_graph=True)


def test_compile_traces_every_functional():
    x, weight, bias = torch.randn(4, 8), torch.randn(8, requires_grad=True), torch.randn(8, requires_grad=True)

    def every(x):
        x = nn.fused_layer_norm(x, 8) + nn.fused_layer_norm_affine(x, weight, bias, (8,))
        x = x + nn.mixed_dtype_fused_layer_norm_affine(x, weight, bias, [8], memory_efficient=True)
        x = x + nn.fused_rms_norm(x, 8) + nn.fused_rms_norm_affine(x, weight, 8)
        return x + nn.mixed_dtype_fused_rms_norm_affine(x, weight, 8) + nn.rms_norm(x, 8) + nn.layer_norm(x, 8)

    torch.testing.assert_close(torch.compile(every, fullgraph=True, backend="aot_eager")(x), every(x))


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_size_of_the_input_may_be_normalized_shape(dynamic):
    for function in (lambda x: nn.fused_layer_norm(x, x.shape[-1]), lambda x: nn.rms_norm(x, x.shape[-2:])):
        torch.compiler.reset()
        compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend="aot_eager")
        for shape in ((3, 7), (4, 9)):
            x = torch.randn(shape)
            torch.testing.assert_close(compiled(x), function(x))


@pytest.mark.parametrize("memory_efficient", [False, True, "exact"])
@pytest.mark.parametrize("kind", NORMS)
def test_make_fx_traces_the_operators_and_no_values(kind, memory_efficient):
    norm, (x, other) = kind(8, memory_efficient=memory_efficient), torch.randn(2, 3, 8)

    def step(x):
        return torch.autograd.grad(norm(x).square().sum(), norm.weight)[0]

    with nn.engine("simulator"):
        output = norm(x.requires_grad_())
        backward = partial(torch.autograd.grad, output, x, retain_graph=True)
        for traced, early in ((norm, False), (step, False), (backward, False), (norm, True)):
            norm.requires_grad_(not early)  # which torch cannot trace so early
            graph = make_fx(traced, pre_dispatch=early)(x.detach())
            torch.testing.assert_close(graph(other), traced(other))


@pytest.mark.parametrize(
    ("engine", "kind", "memory_efficient"), paired(["auto", "simulator"], NORMS, [False, True, "exact"])
)
def test_compiled_autograd_takes_an_eager_norm_s_backward(engine, kind, memory_efficient):
    norm, x, grad_output = kind(8, memory_efficient=memory_efficient), *torch.randn(2, 3, 8)
    found = []
    for compiled in (False, True):
        given = x.clone().requires_grad_()
        compiling = compiled_autograd._enable(partial(torch.compile, backend="eager", fullgraph=True))
        with nn.engine(engine), compiling if compiled else nullcontext():
            norm(given).backward(grad_output)
        found.append(given.grad)
    torch.testing.assert_close(*found)


def test_compile_with_inductor():
    """A norm alone, of rows that are not contiguous: a neighbour to generate code for takes 10 s of a C++ compiler."""
    plain = model(nn.FusedLayerNorm, "exact")[1:2]
    x = torch.randn(8, 4).T
    for one, other in zip(gradients(torch.compile(plain, fullgraph=True), x), gradients(plain, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", NORMS)
def test_compiled_and_saving_the_output_the_input_is_not_saved(kind):
    backend, whole = counts_saved((4, 8))
    for memory_efficient in (False, True):
        norm = kind(8, memory_efficient=memory_efficient)
        # the output is an output anyway, and 2 x leaves nothing for its own gradient
        compiled = torch.compile(lambda x, norm=norm: norm(2 * x), fullgraph=True, backend=backend)
        compiled(torch.randn(4, 8, requires_grad=True)).sum().backward()
    assert whole == [2, 1]


@pytest.mark.parametrize(("kind", "strict", "memory_efficient"), paired(NORMS, [False, True], [True, "exact"]))
def test_export_with_a_dynamic_dimension(kind, strict, memory_efficient):
    plain = model(kind, memory_efficient)
    rows = torch.export.Dim("rows")
    program = torch.export.export(plain, (torch.randn(3, 8),), dynamic_shapes=({0: rows},), strict=strict)
    assert operators(program.graph_module) == [OPERATORS[kind] if memory_efficient is True else EXACT + "_held"] * 2
    x = torch.randn(5, 8)
    torch.testing.assert_close(program.module()(x), plain(x))


def test_fake_tensors_know_what_comes_out():
    with FakeTensorMode():
        x = torch.empty(4, 3, 8, dtype=torch.bfloat16, requires_grad=True)
        weight = torch.empty(8, requires_grad=True)
        output = nn.layer_norm(x, 8, weight, memory_efficient=True)
        assert (output.shape, output.dtype) == ((4, 3, 8), torch.float32)
        output.sum().backward()
        assert (x.grad.shape, x.grad.dtype) == (x.shape, x.dtype)
        assert weight.grad.shape == (8,)
        with torch.no_grad():  # autograd of CUDA tensors needs a torch built for them
            assert nn.rms_norm(torch.empty(4, 8, device="cuda"), 8).is_cuda


@pytest.mark.parametrize(
    ("kind", "operator"), [(nn.FusedLayerNorm, "aten::layer_norm"), (nn.FusedRMSNorm, "aten::rsqrt")]
)
def test_tracing_and_onnx_get_aten_s_operators(kind, operator, monkeypatch):
    norm, x = kind(8, memory_efficient=True), torch.randn(4, 8)
    with warnings.catch_warnings(category=DeprecationWarning, action="ignore"):
        traced = torch.jit.trace(norm, x)
    assert operator in str(traced.inlined_graph)
    torch.testing.assert_close(traced(x), norm(x))
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    program = torch.export.export(norm, (x,))
    names = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert operator.replace("::", ".") + ".default" in names
    assert not any("normlab" in name for name in names)


@pytest.mark.parametrize(
    ("kind", "dtype", "autocast"),
    paired(NORMS, [None, torch.float32, torch.bfloat16], [None, torch.bfloat16, torch.float16]),
)
def test_traced_and_for_onnx_the_output_has_the_same_dtype(kind, dtype, autocast, monkeypatch):
    torch.manual_seed(0)
    norm = kind(8, 1e-5, dtype is not None).to(dtype)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    for given in (torch.float32, torch.bfloat16):
        x = torch.randn(4, 8).to(given)
        with torch.autocast("cpu", autocast, enabled=autocast is not None, cache_enabled=False):
            want = norm(x)
            with warnings.catch_warnings(category=DeprecationWarning, action="ignore"):
                traced = torch.jit.trace(norm, x)
            torch.testing.assert_close(traced(x), want)
            monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
            program = torch.export.export(norm, (x,))
            monkeypatch.undo()
            assert not any("normlab" in str(node.target) for node in program.graph.nodes)
            torch.testing.assert_close(program.module()(x), want)


def test_tracing_tells_of_dtypes_that_do_not_go_together():
    with (
        warnings.catch_warnings(category=DeprecationWarning, action="ignore"),
        pytest.raises(RuntimeError, match="mixed dtype"),
    ):
        torch.jit.trace(nn.FusedRMSNorm(8).bfloat16(), torch.randn(4, 8).half())
