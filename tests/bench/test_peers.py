"""Every adapter, on stand-ins for the peers: modules with the peers' names and signatures that compute with torch."""

import sys
from types import ModuleType

import pytest
import torch
from draws import paired
from torch.nn import functional

from normlab.bench.check import Check
from normlab.bench.choices import peers
from normlab.bench.contenders import OURS, RECOMPUTED, load_peers, ours
from normlab.bench.norm import ahead, best_peer, compete, enter
from normlab.bench.peers import PEERS, _norm
from normlab.bench.problem import DIRECTIONS, NORMS, Problem
from normlab.bench.report import beside_best_peer

ALL = list(PEERS)


def statistics(x, eps, centred=True):
    x = x.float()
    mean = x.mean(-1) if centred else torch.zeros(len(x))
    return mean, ((x - mean[:, None]).square().mean(-1) + eps).rsqrt()


def gradients(norm, dy, x, *parameters):
    leaves = [array.detach().clone().requires_grad_() for array in (x, *parameters)]
    output = norm(leaves[0].float(), (x.shape[-1],), *(leaf.float() for leaf in leaves[1:]), eps=1e-5)
    return torch.autograd.grad(output, leaves, dy.float())


def layer(x, weight, bias, eps):
    return functional.layer_norm(x.float(), weight.shape, weight.float(), bias.float(), eps).to(x.dtype)


def rms(x, weight, eps):
    return functional.rms_norm(x.float(), weight.shape, weight.float(), eps).to(x.dtype)


def module(monkeypatch, name, **names):
    made = ModuleType(name)
    vars(made).update(names)
    monkeypatch.setitem(sys.modules, name, made)
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules.get(parent) or module(monkeypatch, parent), child, made)
    return made


@pytest.fixture
def liger(monkeypatch):
    """liger-kernel 0.8.5."""

    def layer_norm_forward(X, W, B, eps):
        return layer(X, W, B, eps), X, *statistics(X, eps), 1024, 4

    def layer_norm_backward(dY, X, W, B, Mean, RSTD, needs_dw=None, needs_db=None):
        assert Mean.shape == RSTD.shape == (len(X),)
        return gradients(functional.layer_norm, dY, X, W, B)

    def rms_norm_forward(X, W, eps, offset, casting_mode, row_mode):
        assert (offset, casting_mode, row_mode) == (0.0, "llama", None)
        return rms(X, W, eps), X, statistics(X, eps, False)[1], 1024, 4, 0

    def rms_norm_backward(
        dY, X, W, RSTD, offset, casting_mode, BLOCK_SIZE, num_warps, in_place, row_mode, needs_dw=None
    ):
        assert (offset, casting_mode, BLOCK_SIZE, num_warps, row_mode) == (0.0, 0, 1024, 4, None)
        grad_input, grad_weight = gradients(functional.rms_norm, dY, X, W)
        assert in_place
        return dY.copy_(grad_input), grad_weight

    functions = {one.__name__: one for one in (layer_norm_forward, layer_norm_backward)}
    module(monkeypatch, "liger_kernel.ops.layer_norm", **functions)
    functions = {one.__name__: one for one in (rms_norm_forward, rms_norm_backward)}
    module(monkeypatch, "liger_kernel.ops.rms_norm", **functions)


@pytest.fixture
def quack(monkeypatch):
    """quack-kernels 0.6.5."""

    def layernorm_fwd(x, weight, bias=None, eps=1e-6, return_rstd=False, return_mean=False):
        assert weight.dtype == bias.dtype == torch.float32
        assert return_rstd
        assert return_mean
        mean, rstd = statistics(x, eps)
        return layer(x, weight, bias, eps), rstd, mean

    def layernorm_bwd(x, weight, dout, rstd, mean, has_bias=True):
        assert weight.dtype == torch.float32
        assert has_bias
        assert torch.equal(mean, statistics(x, 1e-5)[0])
        assert torch.equal(rstd, statistics(x, 1e-5)[1])
        return gradients(functional.layer_norm, dout, x, weight, torch.zeros_like(weight))

    def rmsnorm_fwd(x, weight=None, bias=None, residual=None, out_dtype=None, residual_dtype=None, eps=1e-6,
                    store_rstd=False, weight_offset=0.0):  # fmt: skip
        assert store_rstd
        return rms(x, weight, eps), x, statistics(x, eps, False)[1]

    def rmsnorm_bwd(x, weight, dout, rstd, dresidual_out=None, has_bias=False, has_residual=False, weight_offset=0.0):
        assert torch.equal(rstd, statistics(x, 1e-5, False)[1])
        return *gradients(functional.rms_norm, dout, x, weight), None, None

    functions = {one.__name__: one for one in (layernorm_fwd, layernorm_bwd, rmsnorm_fwd, rmsnorm_bwd)}
    module(monkeypatch, "quack.rmsnorm", **functions)


@pytest.fixture
def apex(monkeypatch):
    """apex's extension, as apex/normalization/fused_layer_norm.py calls it."""

    def forward_affine(x, shape, weight, bias, eps):
        return [layer(x, weight, bias, eps), *statistics(x, eps)]

    def backward_affine(dy, mean, invvar, saved, shape, weight, bias, eps, memory_efficient):
        assert (mean is None) == memory_efficient
        x = saved
        if memory_efficient:  # an input with the same x̂: its rows' own spread is 1 but for rounding
            x = ((saved.float() - bias.float()) / weight.float() / invvar[:, None]).to(saved.dtype)
        return list(gradients(functional.layer_norm, dy, x, weight, bias))

    def rms_forward_affine(x, shape, weight, eps):
        return [rms(x, weight, eps), statistics(x, eps, False)[1]]

    def rms_backward_affine(dy, invvar, saved, shape, weight, eps, memory_efficient):
        x = (saved.float() / weight.float() / invvar[:, None]).to(saved.dtype) if memory_efficient else saved
        return list(gradients(functional.rms_norm, dy, x, weight))

    functions = (forward_affine, backward_affine, rms_forward_affine, rms_backward_affine)
    module(monkeypatch, "fused_layer_norm_cuda", **{one.__name__: one for one in functions})


TUTORIAL = """
import torch
try:
    import apex
    HAS_APEX = True
except ModuleNotFoundError:
    HAS_APEX = False
DEVICE = "cpu"

class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, normalized_shape, weight, bias, eps):
        ctx.save_for_backward(x, weight, bias)
        ctx.eps = eps
        return compute(x, weight, bias, eps)

    @staticmethod
    def backward(ctx, dy):
        leaves = [one.detach().requires_grad_() for one in ctx.saved_tensors]
        with torch.enable_grad():
            dx, dw, db = torch.autograd.grad(compute(*leaves, ctx.eps), leaves, dy)
        return dx, None, dw, db, None

def compute(x, weight, bias, eps):
    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, eps)

layer_norm = LayerNorm.apply
raise_if_run = 0
print("the tutorial tests itself when it is imported")
raise_if_run / 0
"""


@pytest.fixture
def triton(monkeypatch, tmp_path):
    module(monkeypatch, "triton")
    path = tmp_path / "05-layer-norm.py"
    path.write_text(TUTORIAL)
    monkeypatch.setenv("NORMLAB_TRITON_TUTORIAL", str(path))


def entries(names, norm, direction, dtype, stopwatch):
    problem = Problem(norm, direction, dtype, 20, 32)
    data = problem.draw("cpu")
    check = Check(problem, data)
    peers, absent = load_peers(names)
    assert absent == {}
    return {
        one.name: enter(one, problem, data, check, stopwatch(1e-4), 1e9) for one in peers if direction in one.directions
    }


@pytest.mark.parametrize(
    ("name", "norm", "direction", "dtype"),
    paired(["torch", "liger", "quack", "apex", "triton"], NORMS, DIRECTIONS, ["bfloat16", "float32"]),
)
def test_a_peer_is_called_as_it_wants_to_be_and_gives_what_the_oracle_wants(
    name, norm, direction, dtype, stopwatch, request, capsys
):
    if name != "torch":
        request.getfixturevalue(name)
    for who, entry in entries([name], norm, direction, dtype, stopwatch).items():
        if (name, norm) == ("triton", "rms"):
            assert entry == {"status": "unable", "reason": "UnsupportedError: the tutorial has no RMSNorm"}
        else:
            assert entry["status"] == "ok", (who, entry)
    assert capsys.readouterr().out == ""


def test_a_backward_may_be_called_again_and_again_and_leaves_its_inputs_alone(liger, quack, apex, stopwatch):
    for norm in NORMS:
        problem = Problem(norm, "backward", "float32", 8, 32)
        data = problem.draw("cpu")
        before = [array.clone() for array in (data.x, data.grad_output, *data.parameters)]
        peers, _ = load_peers(["torch", "liger", "quack", "apex"])
        for one in [*ours("both"), *peers]:
            if one.name != "liger" or norm != "rms":  # which writes over the copy that it was given
                call = one.backward(data)
                for first, second in zip(call(), call(), strict=True):
                    assert first is second is None or torch.equal(first, second)
            else:
                one.backward(data)()
        after = (data.x, data.grad_output, *data.parameters)
        assert all(torch.equal(array, copy) for array, copy in zip(after, before, strict=True))


def test_a_compiled_backward_keeps_its_graph(stopwatch):
    (compiled,), _ = load_peers(["compile"])
    prepared = compiled.function
    compiled.prepared = lambda: torch.compile(prepared, backend="aot_eager", dynamic=False)  # no C++ compiler needed
    problem = Problem("layer", "backward", "float32", 8, 32)
    data = problem.draw("cpu")
    call = compiled.backward(data)
    assert all(torch.equal(first, second) for first, second in zip(call(), call(), strict=True))
    assert max(Check(problem, data).worst(compiled, call()).values()) <= 1


def test_compile_makes_a_function_for_each_problem_that_may_run_backward_twice(monkeypatch):
    made = []
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: made.append(dynamic) or function)
    (compiled,), _ = load_peers(["compile"])
    for n2 in (8, 16):
        compiled.forward(Problem("rms", "forward", "float32", 2, n2).draw("cpu"))()
    assert made == [False, False]
    assert torch._functorch.config.donated_buffer is False


@pytest.mark.parametrize("norm", NORMS)
def test_compiled_for_inference_has_a_forward_without_statistics_and_gradients(norm, stopwatch, monkeypatch):
    compiled = []

    def compile_it(function, dynamic):
        def run(x, *rest):
            compiled.append((function, torch.is_grad_enabled()))
            return function(x, *rest)

        return run

    monkeypatch.setattr(torch, "compile", compile_it)
    (one,) = load_peers(["compile-inference"])[0]
    assert (one.name, one.directions) == ("compile-inference", ("forward",))
    problem = Problem(norm, "forward", "bfloat16", 20, 32)
    (row,) = compete([problem], [*ours("saved"), one], stopwatch(1e-6, 4e-6, 2e-6), "cpu")
    assert row["contenders"]["compile-inference"]["status"] == "ok"
    assert (best_peer(row), ahead(row)) == ("compile-inference", 0.5)
    assert beside_best_peer(row) == "0.25 / **0.50** compile-inference"
    assert set(compiled) == {(_norm, False)}
    backward = Problem(norm, "backward", "bfloat16", 20, 32)
    assert list(compete([backward], [*ours("saved"), one], stopwatch(1e-6), "cpu")[0]["contenders"]) == ["normlab"]


def test_compiled_for_inference_takes_part_only_if_it_is_named():
    assert "compile-inference" not in peers(None)
    assert peers(["compile-inference"]) == ["compile-inference"]
    assert set(peers(None)) == set(PEERS) - {"compile-inference"}


def test_peers_that_cannot_be_imported_are_absent_with_their_reason(monkeypatch):
    for name in ("liger_kernel", "quack", "fused_layer_norm_cuda", "triton"):
        monkeypatch.setitem(sys.modules, name, None)
    found, absent = load_peers(ALL)
    assert [one.name for one in found] == ["torch", "compile", "compile-inference"]
    assert list(absent) == ["liger", "quack", "apex", "triton"]
    assert all(name in absent[peer] for peer, name in (("quack", "quack"), ("apex", "fused_layer_norm_cuda")))


def test_the_tutorial_is_absent_until_somebody_says_where_it_is(monkeypatch, tmp_path):
    module(monkeypatch, "triton")
    monkeypatch.delenv("NORMLAB_TRITON_TUTORIAL", raising=False)
    assert "NORMLAB_TRITON_TUTORIAL does not say where" in load_peers(["triton"])[1]["triton"]
    file = tmp_path / "tutorial.py"
    monkeypatch.setenv("NORMLAB_TRITON_TUTORIAL", str(file))
    assert "No such file" in load_peers(["triton"])[1]["triton"]
    file.write_text("def layer_norm(): pass")
    assert "defines no class LayerNorm" in load_peers(["triton"])[1]["triton"]
    file.write_text("import no_such_module_anywhere")
    assert "no_such_module_anywhere" in load_peers(["triton"])[1]["triton"]
    file.write_text("DEVICE = 1 / 0")
    assert "ZeroDivisionError: division by zero" in load_peers(["triton"])[1]["triton"]


def test_normlab_s_entries_follow_the_paths():
    def names(paths, direction):
        return [one.name for one in ours(paths) if direction in one.directions]

    assert [names(paths, "forward") for paths in ("saved", "recomputed", "both")] == [[OURS]] * 3
    assert names("saved", "backward") == [OURS]
    assert names("recomputed", "backward") == [RECOMPUTED]
    assert names("both", "backward") == [OURS, RECOMPUTED]
