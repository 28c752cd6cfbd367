"""Outputs and gradients lie in memory as torch.nn.functional's, are no views, and may be written to."""

import copy
from functools import partial

import pytest
import torch
from draws import paired
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from normlab import nn
from normlab.host import family

SIZES = (3, 4, 5, 6, 2)
NORMS = ["batch", "batch evaluation", "instance", "instance evaluation", "instance tracked", "group"]


def inputs(dimensions):
    """float64, in which no example is ill-conditioned, laid out in various ways, by name."""
    randn = partial(torch.randn, dtype=torch.float64)
    n, c, *space = SIZES[:dimensions]
    shape = (n, c, *space)
    made = {
        "contiguous": randn(shape),
        "permuted": randn(shape[::-1]).permute(*range(dimensions)[::-1]),
        "transposed": randn(c, n, *space).transpose(0, 1),
        "one sample expanded": randn(1, c, *space).expand(shape),
        "one channel expanded": randn(n, 1, *space).expand(shape),
        "every second channel": randn(n, 2 * c, *space)[:, ::2],
        "channels moved": randn(n, *space, c).movedim(-1, 1),
        "one sample": randn(1, c, *space),
        "one channel": randn(n, 1, *space),
    }
    if dimensions > 3:
        last = torch.channels_last if dimensions == 4 else torch.channels_last_3d
        made["channels last"] = randn(shape).to(memory_format=last)
        made["channels last, some"] = randn(n, 2 * c, *space).to(memory_format=last)[:, :c]
        made["channels last, one sample"] = randn(1, c, *space).to(memory_format=last)
        made["channels last, one channel"] = randn(n, 1, *space).to(memory_format=last)
        made["channels last, one value"] = randn(n, c, *(1 for _ in space)).to(memory_format=last)
        made["space transposed"] = randn(*shape[:-2], shape[-1], shape[-2]).transpose(-1, -2)
    return made


CASES = [(dimensions, name) for dimensions in (2, 3, 4, 5) for name in inputs(dimensions)]


def call(library, norm, x):
    """The output of a norm with parameters of 1 and 0."""
    kind, _, how = norm.partition(" ")
    ones, zeros = (x.new_full(x.shape[1:2], value) for value in (1, 0))
    affine = ones.clone().requires_grad_(), zeros.clone().requires_grad_()
    if kind == "group":
        return library.group_norm(x, 1 if x.shape[1] == 1 else 2, *affine)
    running = (zeros, ones) if how else (None, None)
    return getattr(library, f"{kind}_norm")(x, *running, *affine, how != "evaluation")


def possible(norm, x):
    """Instance norm of single values is an error, and batch norm of one."""
    values = x[0, 0].numel() * (len(x) if norm.startswith("batch") else 1)
    return values > 1 or norm in ("batch evaluation", "instance evaluation", "group")


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("dimensions", "name"), CASES, ids=str)
def test_strides_values_and_gradients_are_torch_s(dimensions, name, norm):
    x = inputs(dimensions)[name]
    if not possible(norm, x):
        pytest.skip("an error, as in torch")
    for dy in (torch.randn(x.shape).double(), torch.randn(x.shape[::-1]).double().permute(*range(dimensions)[::-1])):
        found = []
        for library in (nn, functional):
            leaf = x.detach().requires_grad_()
            output = call(library, norm, leaf)
            found.append((output, *torch.autograd.grad(output, leaf, dy)))
        for mine, theirs in zip(*found, strict=True):
            assert mine.stride() == theirs.stride()
            torch.testing.assert_close(mine, theirs)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        leaf = mode.from_tensor(x.detach()).requires_grad_()
        fake = call(nn, norm, leaf)
        found = fake, *torch.autograd.grad(fake, leaf, torch.empty_like(fake))
    assert [one.stride() for one in found] == [output.stride(), theirs.stride()]
    with torch.no_grad():
        assert call(nn, norm, x).stride() == output.stride()


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.channels_last_3d])
def test_a_row_far_from_0_lies_as_torch_s(norm, layout):
    ones = (1,) * (1 if layout is torch.channels_last else 2)
    x = torch.randn(1, 4, *ones, 6, dtype=torch.float64).add(100).to(memory_format=layout)
    mine, theirs = (call(library, norm, x.detach().requires_grad_()) for library in (nn, functional))
    assert mine.stride() == theirs.stride()
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("norm", ["batch", "batch evaluation", "instance", "group"])
@pytest.mark.parametrize("name", ["contiguous", "channels last", "channels last, some", "transposed"])
def test_the_kernels_results_lie_likewise(name, norm):
    x = inputs(4)[name][:2, :, :2, :2]
    found = []
    for library in (nn, functional):
        leaf = x.detach().requires_grad_()
        with nn.engine("simulator"):
            output = call(library, norm, leaf)
            found.append((output, *torch.autograd.grad(output, leaf, torch.randn_like(x))))
    for simulated, theirs in zip(*found, strict=True):
        assert simulated.stride() == theirs.stride()


MODULES = {
    "BatchNorm2d": lambda library: library.BatchNorm2d(4),
    "InstanceNorm2d": lambda library: library.InstanceNorm2d(4, affine=True),
    "InstanceNorm2d tracked": lambda library: library.InstanceNorm2d(4, affine=True, track_running_stats=True),
    "GroupNorm": lambda library: library.GroupNorm(2, 4),
}


def step(module, x, change):
    """Output, gradients and buffers of a module whose output is changed in place; x is no leaf."""
    leaf = x.detach().requires_grad_()
    output = change(module(leaf * 2), leaf)
    output.square().sum().backward()
    found = [output.detach(), leaf.grad, *(one.grad for one in module.parameters()), *module.buffers()]
    module.zero_grad()
    return found


CHANGES = {
    "relu": lambda y, x: functional.relu(y, inplace=True),
    "add": lambda y, x: y.add_(x),
    "a part": lambda y, x: y.clone().copy_(y[:, :2].mul_(3).repeat(1, 2, 1, 1)) + y,
}


@pytest.mark.parametrize(("name", "engine", "training", "values", "layout", "change"), paired(
    MODULES, ["auto", "simulator"], [True, False],
    [(torch.float64, 0), (torch.float64, 30), (torch.bfloat16, 0)],
    [torch.contiguous_format, torch.channels_last], CHANGES,
))  # fmt: skip
def test_an_output_may_be_changed_in_place(name, engine, training, values, layout, change):
    dtype, offset = values
    torch.manual_seed(0)
    parameters = torch.float32 if dtype == torch.bfloat16 else dtype
    mine, theirs = (MODULES[name](library).train(training).to(parameters) for library in (nn, torch.nn))
    x = (torch.randn(2, 4, 3, 2) + offset).to(dtype).to(memory_format=layout)
    with nn.engine(engine):
        found = step(mine, x, CHANGES[change])
    tolerance = {"rtol": 5e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(found, step(theirs, x, CHANGES[change]), **tolerance)


@pytest.mark.parametrize("name", MODULES)
def test_compiled_as_well(name):
    norm = MODULES[name](nn)
    twin = copy.deepcopy(norm)
    x = torch.randn(2, 4, 3, 2)
    compiled = torch.compile(
        lambda x: functional.relu(twin(x).add_(x), inplace=True), backend="aot_eager", fullgraph=True
    )
    found = []
    for run in (lambda x: functional.relu(norm(x).add_(x), inplace=True), compiled):
        leaf = x.clone().requires_grad_()
        output = run(leaf * 2)
        output.square().sum().backward()
        found.append((output, leaf.grad))
    torch.testing.assert_close(*found)
    torch.testing.assert_close(list(norm.buffers()), list(twin.buffers()))
    torch.compiler.reset()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_outputs_of_the_host_face_are_no_views(layout, dtype):
    class Mine(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return family.batch_norm(x)[0]

        @staticmethod
        def backward(ctx, dy):
            return dy

    x = torch.randn(2, 4, 2, 2, dtype=dtype).to(memory_format=layout).requires_grad_()
    output = Mine.apply(x)
    assert output.is_contiguous(memory_format=layout)
    output.add_(1)
    output.sum().backward()


class Block(torch.nn.Module):
    """torchvision's BasicBlock: ReLU in place on a norm's output, and the input added to it in place."""

    def __init__(self, norm):
        super().__init__()
        self.convs = torch.nn.ModuleList(torch.nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(2))
        self.norms = torch.nn.ModuleList(norm(4) for _ in range(2))
        self.relu = torch.nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.relu(self.norms[0](self.convs[0](x)))
        out = self.norms[1](self.convs[1](out))
        out += x
        return self.relu(out)


def residual(norm_layer):
    """Three blocks."""
    return torch.nn.Sequential(*(Block(norm_layer) for _ in range(3)), torch.nn.Conv2d(4, 3, 1))


def resnet18(norm_layer):
    """torchvision's."""
    try:
        models = pytest.importorskip("torchvision.models")
    except RuntimeError as error:
        pytest.skip(f"this torchvision was built for another torch: {error}")
    return models.resnet18(norm_layer=norm_layer, num_classes=5)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("make", "name"), [(residual, name) for name in MODULES] + [(resnet18, "BatchNorm2d")])
def test_residual_networks_train_and_evaluate(make, name, training, layout):
    results = []
    for library in (nn, torch.nn):
        torch.manual_seed(0)
        norm_layer = getattr(library, name.split()[0])
        options = {"affine": True, "track_running_stats": True} if "tracked" in name else {}
        model = make(partial(norm_layer, 2) if name == "GroupNorm" else partial(norm_layer, **options))
        model = model.double().to(memory_format=layout).train(training)
        channels = 3 if make is resnet18 else 4
        x = torch.randn(2, channels, 33, 33, dtype=torch.float64).to(memory_format=layout).requires_grad_()
        output = model(x)
        output.square().sum().backward()
        results.append([output, x.grad, *(one.grad for one in model.parameters()), *model.buffers()])
    torch.testing.assert_close(*results)
    assert [one.stride() for one in results[0]] == [one.stride() for one in results[1]]
