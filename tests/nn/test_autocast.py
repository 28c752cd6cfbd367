"""Autocast: apex's names give its dtype, of float32 statistics; other norms what they gave before; and GradScaler."""

from contextlib import contextmanager, nullcontext
from itertools import product

import pytest
import torch
from draws import paired
from nn.norms import MODES
from torch._subclasses.fake_tensor import FakeTensorMode

from normlab import nn

DTYPES = (torch.float16, torch.bfloat16)


@pytest.mark.parametrize(
    ("kind", "affine", "memory_efficient", "dtype"),
    paired([nn.FusedLayerNorm, nn.FusedRMSNorm], [True, False], MODES, DTYPES),
)
def test_outputs_have_the_autocast_dtype_and_gradients_their_tensors(kind, affine, memory_efficient, dtype):
    torch.manual_seed(0)
    norm = kind(16, 1e-5, affine, memory_efficient)
    for parameter in norm.parameters():
        torch.nn.init.uniform_(parameter, 0.5, 1.5)
    for input_dtype in (torch.float32, dtype):
        # the statistics see the input as it is: rounded to a half, these rows would be constant
        x = (torch.randn(4, 16) + (1e4 if input_dtype == torch.float32 else 0)).to(input_dtype).requires_grad_()
        with torch.autocast("cpu", dtype):
            output = norm(x)
        assert output.dtype == dtype
        norm.zero_grad()
        output.sum().backward()
        assert x.grad.dtype == input_dtype
        assert {parameter.grad.dtype for parameter in norm.parameters()} <= {torch.float32}
        wide = kind(16, 1e-5, affine).double()
        wide.load_state_dict(norm.state_dict())
        torch.testing.assert_close(output.double(), wide(x.double()), rtol=2**-6, atol=2**-6)


def test_float64_is_left_alone_as_in_torch():
    with torch.autocast("cpu", torch.bfloat16):
        assert nn.FusedLayerNorm(4).double()(torch.randn(2, 4).double()).dtype == torch.float64


def test_a_half_that_is_not_the_autocast_dtype_goes_through_float32():
    x = torch.full((2, 4), 2.0**20, dtype=torch.bfloat16)  # infinite in float16
    x[:, 0] = 0
    with torch.autocast("cpu", torch.float16):
        output = nn.FusedLayerNorm(4)(x)
    assert output.dtype == torch.float16
    assert output.isfinite().all()


@pytest.mark.parametrize("run_by", ["auto", "simulator"])
@pytest.mark.parametrize("mode", [False, True, "exact"])
def test_norms_with_more_than_x_take_the_other_half_too(run_by, mode):
    x, y, weight = torch.randn(3, 4).half(), torch.randn(3, 4).half(), torch.rand(4, requires_grad=True)
    calls = {
        "layer": lambda: nn.add_layer_norm(x, y, weight, weight, memory_efficient=mode)[0],
        "rms": lambda: nn.add_rms_norm(x, y, weight, memory_efficient=mode)[0],
        "plain": lambda: nn.add_rms_norm(x, y, memory_efficient=mode)[0],
        "heads": lambda: nn.head_rms_norm(x, weight),
        "gate": lambda: nn.gated_rms_norm(x, y, weight, memory_efficient=mode is True),
        "modulated": lambda: nn.modulated_layer_norm(x[:, None], y, y),
    }
    for name, call in calls.items():
        with nn.engine(run_by):
            with torch.autocast("cpu", torch.bfloat16):
                output = call()
            assert output.dtype == torch.bfloat16, name
            torch.testing.assert_close(output.float(), call().float(), atol=3e-2, rtol=1e-2, msg=name)
            if output.requires_grad:
                assert torch.autograd.grad(output.sum(), weight)[0].dtype == torch.float32


@contextmanager
def gpu_autocast(dtype=torch.float16):
    """A GPU's autocast, for fake tensors: torch.autocast looks for a GPU."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", torch.float16)


def gpu_dtype(norm, parameters, given):
    """The dtype of a norm's output on a GPU, or None if it takes no such dtypes."""
    with FakeTensorMode(), torch.no_grad():
        x = torch.empty(2, 8, device="cuda", dtype=given)
        made = {name: torch.empty(8, device="cuda", dtype=parameters) for name, _ in norm.named_parameters()}
        try:
            return torch.func.functional_call(norm, made, x).dtype
        except RuntimeError:
            return None


def test_apex_s_names_give_a_gpu_s_autocast_dtype():
    for dtype, given in product(DTYPES, (torch.float32, *DTYPES)):
        with gpu_autocast(dtype):
            assert gpu_dtype(nn.FusedLayerNorm(8), torch.float32, given) == dtype
            assert gpu_dtype(nn.MixedFusedRMSNorm(8), torch.float32, given) == dtype


class Wider(torch.nn.Module):
    """A norm as transformers has many: rounded, and then multiplied by the weight."""

    def __init__(self):
        super().__init__()
        self.weight, self.variance_epsilon = torch.nn.Parameter(torch.ones(8)), 1e-6

    def normalised(self, x):
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    def forward(self, x):
        return self.weight * self.normalised(x).to(x.dtype)


class AsTheInput(Wider):
    """Rounded last."""

    def forward(self, x):
        return (self.weight * self.normalised(x)).to(x.dtype)


class AsTheParameters(Wider):
    """As T5's."""

    def forward(self, x):
        return self.weight * self.normalised(x).to(self.weight.dtype)


class OfPyTorch(torch.nn.RMSNorm):
    """By PyTorch's function."""

    def forward(self, x):
        return super().forward(x)


OLD = [
    lambda: torch.nn.LayerNorm(8),
    lambda: torch.nn.LayerNorm(8, elementwise_affine=False),
    lambda: torch.nn.RMSNorm(8),
    Wider,
    AsTheInput,
    AsTheParameters,
    lambda: OfPyTorch(8),
]
NAMES = ["LayerNorm", "LayerNorm without parameters", "RMSNorm", "wider", "input", "parameters", "subclass"]
every_old_norm = pytest.mark.parametrize("old", OLD, ids=NAMES)


def in_place_of(old, memory_efficient):
    model = torch.nn.Sequential(old())
    report = nn.replace_norms(model, memory_efficient)
    assert len(report) == 1, report
    return model[0]


@every_old_norm
@pytest.mark.parametrize("memory_efficient", MODES)
def test_a_norm_in_another_s_place_keeps_its_dtype_under_a_cpu_s_autocast(old, memory_efficient):
    torch.manual_seed(0)
    new = in_place_of(old, memory_efficient)
    for autocast, parameters, given in product(DTYPES, *[(torch.float32, *DTYPES)] * 2):
        x, norm = torch.randn(3, 8).to(given), old().to(parameters)
        with torch.autocast("cpu", autocast):
            try:
                want = norm(x)
            except RuntimeError:  # a mix that it does not take
                continue
            if {parameters, given} == set(DTYPES) and new.weight is not None and want.dtype != given:
                continue  # two halves beside each other, in a formula
            got = new.to(parameters)(x)
        assert got.dtype == want.dtype, (autocast, parameters, given)
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


@every_old_norm
@pytest.mark.parametrize("memory_efficient", MODES)
def test_a_norm_in_another_s_place_keeps_its_dtype_under_a_gpu_s_autocast(old, memory_efficient):
    new = in_place_of(old, memory_efficient)
    for autocast, parameters, given in product(DTYPES, (torch.float32, *DTYPES), (torch.float32, *DTYPES)):
        if {parameters, given} == set(DTYPES):
            continue
        with gpu_autocast(autocast):
            want = gpu_dtype(old(), parameters, given)
            assert want is None or gpu_dtype(new, parameters, given) == want, (autocast, parameters, given)


@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
def test_torch_nn_s_names_have_torch_nn_s_dtype_under_autocast(name):
    mine, theirs = getattr(nn, name)(8), getattr(torch.nn, name)(8)
    for autocast, given in product(DTYPES, (torch.float32, *DTYPES)):
        with gpu_autocast(autocast):
            want = gpu_dtype(theirs, torch.float32, given)
            assert gpu_dtype(mine, torch.float32, given) == want
            assert name == "RMSNorm" or want == torch.float32  # PyTorch 2.11's RMSNorm keeps the input's dtype
        x = torch.randn(3, 8).to(given)
        with torch.autocast("cpu", autocast):
            torch.testing.assert_close(mine(x), theirs(x), rtol=2e-2, atol=2e-2)
    assert mine.double()(x.double()).dtype == torch.float64


@pytest.mark.parametrize("memory_efficient", MODES)
def test_a_float32_head_takes_what_a_replaced_norm_gives_it(memory_efficient):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))
    nn.replace_norms(model, memory_efficient)
    head = torch.nn.Linear(8, 2)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for module in (model, compiled):
        with torch.autocast("cpu", torch.bfloat16):
            hidden = module[1](torch.randn(3, 8)) if module is model else module(torch.randn(3, 8)).float()
        head(hidden).sum().backward()
    torch.compiler.reset()


def test_compiled_under_autocast():
    norm = nn.FusedLayerNorm(8, memory_efficient=True)
    compiled = torch.compile(norm, fullgraph=True, backend="aot_eager")
    x = torch.randn(4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(x), norm(x), rtol=0, atol=0)
    assert compiled(x).dtype == torch.float32


def test_grad_scaler_steps_and_skips_a_step_of_infinite_gradients():
    torch.manual_seed(0)
    norm = nn.FusedLayerNorm(8, memory_efficient="exact")
    optimizer, scaler = torch.optim.SGD(norm.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for scale, moves in ((1.0, True), (torch.inf, False)):
        before = norm.weight.detach().clone()
        with torch.autocast("cpu", torch.float16):
            loss = norm(torch.randn(4, 8)).float().square().sum() * scale
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert bool((norm.weight != before).any()) == moves
        assert norm.weight.isfinite().all()


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU and a torch built for CUDA")


@pytest.mark.parametrize("place", ["cpu", "simulator", pytest.param("cuda", marks=GPU)])
@pytest.mark.parametrize(
    ("name", "affine", "memory_efficient", "dtype"),
    paired(["LayerNorm", "RMSNorm"], [True, False], [False, True], DTYPES),
)
def test_with_apex_s_rounding_apex_s_autocast_tests_hold(name, affine, memory_efficient, dtype, place):
    """There a norm under autocast is held to torch.nn's of rounded input and parameters; these are apex's tolerances.

    torch.nn's computes in float32, as it does on a GPU for halves. On a CPU it rounds statistics to a half.
    """
    torch.manual_seed(0)
    device = "cuda" if place == "cuda" else "cpu"
    rows, shape = 3 if place == "simulator" else 16, (32, 16)
    theirs = getattr(torch.nn, name)(shape, eps=1e-5, elementwise_affine=affine).to(device)
    ours = getattr(nn, f"Fused{name}")(shape, elementwise_affine=affine, memory_efficient=memory_efficient).to(device)
    x = torch.randn(rows, *shape, device=device, requires_grad=True)
    rounded = x.detach().to(dtype).requires_grad_()
    want = theirs(rounded.float()).to(dtype)
    engine = nn.engine("simulator") if place == "simulator" else nullcontext()
    with nn.apex_autocast(), torch.autocast(device, dtype), engine:
        got = ours(x)
    half = dtype == torch.float16
    tolerance = {"rtol": 1e-3, "atol": 1e-5} if half else {"rtol": 1.6e-2, "atol": 3e-4}
    torch.testing.assert_close(got, want, **tolerance)
    grad = torch.rand_like(want)
    want.backward(grad)
    got.backward(grad)
    tolerance = {"rtol": 1e-3, "atol": 1e-4 if memory_efficient else 1e-5} if half else {"rtol": 1.6e-2, "atol": 3e-3}
    torch.testing.assert_close(x.grad.to(dtype), rounded.grad, **tolerance)


def test_apex_s_rounding_ends_with_its_block_and_holds_in_graphs_and_functions():
    x, weight = torch.randn(4, 8) + 1e4, torch.ones(8)  # constant rows, as bfloat16

    def norm(x):
        return nn.layer_norm(x, 8, weight)

    compiled = torch.compile(norm, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16):
        for function in (norm, compiled):
            with nn.apex_autocast():
                assert not function(x).any()
            assert function(x).any()
    torch.compiler.reset()
