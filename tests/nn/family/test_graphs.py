"""The operator in graphs: torch.compile, torch.export, fake and meta tensors; and torch's own checks of it."""

import copy
import warnings
from functools import partial

import pytest
import torch
from functorch.compile import make_boxed_compiler
from torch._dynamo import compiled_autograd
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck

from normlab import nn

pytestmark = pytest.mark.usefixtures("forget_compiled")
FORWARD, BACKWARD = "normlab::family_norm", "normlab::family_norm_backward"
NORMS = [nn.BatchNorm2d(4), nn.InstanceNorm2d(4, affine=True, track_running_stats=True), nn.GroupNorm(2, 4)]


@pytest.mark.parametrize(
    ("kind", "groups", "own", "tracked"),
    [
        ("batch", None, True, True),
        ("batch", None, False, True),
        ("instance", None, True, False),
        ("group", 2, True, False),
    ],
)
def test_opcheck(kind, groups, own, tracked):
    torch.manual_seed(0)
    x = torch.randn(2, 4, 3, 2).to(memory_format=torch.channels_last).requires_grad_()
    weight, bias = (torch.randn(4, requires_grad=True) for _ in range(2))
    running = (torch.zeros(4), torch.ones(4)) if tracked else (None, None)
    opcheck(torch.ops.normlab.family_norm.default, (kind, groups, own, x, *running, weight, bias, 0.1, 1e-5))
    _, mean, invvar, _ = torch.ops.normlab.family_norm(kind, groups, own, x, *running, None, None, 0.1, 1e-5)
    given = torch.randn(2, 4, 3, 2), x.detach(), mean, invvar
    opcheck(torch.ops.normlab.family_norm_backward.default, (*given, kind, groups, own, weight.detach(), None))


def gradients(module, x):
    """Output, gradients and buffers after a step."""
    module.zero_grad()
    x = x.clone().requires_grad_()
    output = module(x)
    output.square().sum().backward()
    return [output.detach(), x.grad, *(one.grad.clone() for one in module.parameters()), *module.buffers()]


@pytest.mark.parametrize("norm", NORMS, ids=lambda norm: type(norm).__name__)
def test_compile_keeps_the_operator_in_both_graphs_and_shapes_dynamic(norm):
    graphs = []

    def keep(graph, _):
        graphs.append([node.target._name for node in graph.graph.nodes if "normlab" in str(node.target)])
        return graph

    plain = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 1), copy.deepcopy(norm))
    twin = copy.deepcopy(plain)
    compiled = torch.compile(
        twin, fullgraph=True, dynamic=True, backend=aot_autograd(fw_compiler=make_boxed_compiler(keep))
    )
    for shape in ((2, 4, 6, 7), (3, 4, 8, 5)):  # no two sizes equal, which would be guarded
        x = torch.randn(shape)
        torch.testing.assert_close(gradients(compiled, x), gradients(plain, x), rtol=1e-4, atol=1e-4)
    assert graphs == [[FORWARD], [BACKWARD]]  # and no more: nothing was compiled again
    x = torch.randn(2, 4, 3, 3)
    torch.testing.assert_close(torch.compile(twin.eval(), fullgraph=True, backend="aot_eager")(x), plain.eval()(x))


@pytest.mark.parametrize("engine", ["auto", "simulator"])
@pytest.mark.parametrize("norm", NORMS, ids=lambda norm: type(norm).__name__)
def test_graphs_hold_the_operators_and_no_values(norm, engine):
    norm, (x, other) = copy.deepcopy(norm).eval(), torch.randn(2, 2, 4, 3, 3)
    with nn.engine(engine):
        backward = partial(torch.autograd.grad, norm(x.requires_grad_()), x, retain_graph=True)
        graphs = make_fx(backward)(x.detach()), make_fx(norm.requires_grad_(False), pre_dispatch=True)(x.detach())
        torch.testing.assert_close(graphs[0](other), backward(other))
        torch.testing.assert_close(graphs[1](other), norm(other))
        with compiled_autograd._enable(partial(torch.compile, backend="eager", fullgraph=True)):
            norm(x).backward(other)
        torch.testing.assert_close(x.grad, *backward(other))


def test_export_knows_the_operator_and_updates_the_buffers():
    norm = nn.BatchNorm2d(4)
    program = torch.export.export(norm, (torch.randn(2, 4, 3, 3),))
    assert FORWARD in [getattr(node.target, "_name", "") for node in program.graph.nodes]
    x, made = torch.randn(2, 4, 3, 3), program.module()
    torch.testing.assert_close(made(x), norm(x))
    torch.testing.assert_close(made.running_var, norm.running_var)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_fake_and_meta_tensors_know_what_comes_out(layout):
    for norm in map(copy.deepcopy, NORMS):
        meta = norm.to("meta")(torch.empty(2, 4, 3, 3, device="meta").to(memory_format=layout))
        assert (meta.shape, meta.dtype) == ((2, 4, 3, 3), torch.float32)
        theirs = torch.nn.functional.instance_norm if isinstance(norm, nn.InstanceNorm2d) else torch.clone
        assert meta.stride() == theirs(torch.empty(2, 4, 3, 3, device="meta").to(memory_format=layout)).stride()
    with FakeTensorMode():
        x = torch.empty(2, 4, 3, 3, dtype=torch.bfloat16, requires_grad=True)
        weight = torch.empty(4, requires_grad=True)
        nn.batch_norm(x, None, None, weight, None, True).sum().backward()
        assert (x.grad.dtype, weight.grad.dtype) == (torch.bfloat16, torch.float32)
        with torch.no_grad():  # autograd of CUDA tensors needs a torch built for them
            assert nn.group_norm(torch.empty(2, 4, 8, device="cuda"), 2).is_cuda


def test_tracing_and_onnx_get_aten_s_operators(monkeypatch):
    x = torch.randn(2, 4, 3, 3)
    for norm, operator in zip(map(copy.deepcopy, NORMS), ("batch_norm", "instance_norm", "group_norm"), strict=True):
        norm.eval()
        with warnings.catch_warnings(category=DeprecationWarning, action="ignore"):
            traced = torch.jit.trace(norm, x)
        assert f"aten::{operator}" in str(traced.inlined_graph)
        torch.testing.assert_close(traced(x), norm(x))
        monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
        program = torch.export.export(norm, (x,))
        assert not any("normlab" in str(node.target) for node in program.graph.nodes)
        monkeypatch.undo()


@pytest.mark.parametrize("norm", NORMS, ids=lambda norm: type(norm).__name__)
def test_traced_under_autocast_the_output_has_the_input_s_dtype_too(norm):
    norm, x = copy.deepcopy(norm).eval(), torch.randn(2, 4, 3, 3).bfloat16()
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        with warnings.catch_warnings(category=DeprecationWarning, action="ignore"):
            traced = torch.jit.trace(norm, x)
        torch.testing.assert_close(traced(x), norm(x), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("run", ["auto", "simulator"])
def test_make_fx_traces_the_operator_and_no_values(run):
    x, other = torch.randn(2, 2, 4, 3)
    with nn.engine(run):
        for function in (lambda x: nn.group_norm(x, 2), lambda x: nn.batch_norm(x, None, None, training=True)):
            torch.testing.assert_close(make_fx(function)(x)(other), function(other))
