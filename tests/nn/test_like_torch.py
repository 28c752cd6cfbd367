"""Layouts, inference mode and dtypes that mix: what torch.nn.functional's norms do, these do."""

from copy import copy
from itertools import product

import pytest
import torch
from draws import paired
from nn.norms import MODES
from torch._subclasses.fake_tensor import FakeTensorMode

from normlab import nn

CHANNELS_LAST = torch.randn(2, 8, 4, 6).to(memory_format=torch.channels_last)
INPUTS = {
    "contiguous": (torch.randn(2, 3, 8), (8,)),
    "rows transposed": (torch.randn(3, 2, 8).transpose(0, 1), (8,)),
    "columns transposed": (torch.randn(2, 8, 3).transpose(1, 2), (8,)),
    "expanded": (torch.randn(1, 1, 8).expand(2, 3, 8), (8,)),
    "a row expanded": (torch.randn(8).expand(5, 8), (8,)),
    "sliced": (torch.randn(4, 6, 16)[::2, ::2, ::2], (8,)),
    "a single sliced row": (torch.randn(16)[::2], (8,)),
    "channels last": (CHANNELS_LAST, (6,)),
    "channels last, over all of them": (CHANNELS_LAST, (8, 4, 6)),
    "channels last, permuted": (CHANNELS_LAST.permute(0, 2, 3, 1), (8,)),
    "channels first, permuted": (torch.randn(2, 8, 4, 6).permute(0, 2, 3, 1), (8,)),
    "channels last in three dimensions": (
        torch.randn(2, 8, 4, 6, 5).to(memory_format=torch.channels_last_3d),
        (5,),
    ),
}


def strides(norm, x, shape) -> list[tuple]:
    """Those of the output and the gradients."""
    x, weight = x.detach().requires_grad_(), torch.ones(shape, requires_grad=True)
    output = norm(x, shape, weight)
    return [one.stride() for one in (output, *torch.autograd.grad(output.sum(), (x, weight)))]


def faked(norm, x, shape) -> list[tuple]:
    with FakeTensorMode() as mode:
        return strides(norm, mode.from_tensor(x), shape)


def simulated(norm, x, shape) -> list[tuple]:
    with nn.engine("simulator"):
        return strides(norm, x, shape)


def compiled(norm, x, shape) -> list[tuple]:
    torch.compiler.reset()
    found = strides(torch.compile(norm, backend="aot_eager", fullgraph=True), x, shape)
    return found[:1]  # compiled, torch's own gradients are laid out otherwise than in eager mode


# Every input with every way and norm, compiled with one norm; the modes, of which memory layouts do not know, take
# turns with each of them.
CELLS = [
    pytest.param(given, name, MODES[(row + column + turn) % len(MODES)], way, id=f"{given}-{name}-{way.__name__}")
    for row, given in enumerate(INPUTS)
    for column, way in enumerate((strides, faked, simulated, compiled))
    for turn, name in enumerate(("layer_norm", "rms_norm"))
    if way is not compiled or turn == row % 2
]


@pytest.mark.parametrize(("given", "name", "memory_efficient", "way"), CELLS)
def test_outputs_and_gradients_lie_as_torch_s(given, name, memory_efficient, way):
    theirs, ours = getattr(torch.nn.functional, name), getattr(nn, name)
    x, shape = INPUTS[given]
    want = way(lambda x, shape, weight: theirs(x, shape, weight), x, shape)
    got = way(lambda x, shape, weight: ours(x, shape, weight, memory_efficient=memory_efficient), x, shape)
    assert got == want


@pytest.mark.parametrize(
    ("engine", "module", "memory_efficient"),
    paired(["auto", "simulator"], [nn.FusedLayerNorm(8), nn.FusedRMSNorm(8), nn.LayerNorm(8), nn.RMSNorm(8)], MODES),
)
def test_outputs_in_inference_mode_are_inference_tensors(engine, module, memory_efficient):
    module.memory_efficient = memory_efficient
    x = torch.randn(3, 8)
    with torch.inference_mode(), nn.engine(engine):
        output, of_inference = module(x), module(torch.randn(3, 8))
    assert output.is_inference()
    assert of_inference.is_inference()
    assert not output.requires_grad
    torch.testing.assert_close(output.clone(), module(x).detach())


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("memory_efficient", MODES)
@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
def test_dtypes_mix_as_torch_s(name, memory_efficient):
    """float64 beside another dtype: layer_norm raises, rms_norm computes, and so for the two halves."""
    torch.manual_seed(0)
    x, dy = torch.randn(2, 3, 8, dtype=torch.float64)
    for given, own in product((torch.float16, torch.bfloat16, torch.float32, torch.float64), repeat=2):
        leaf = x.to(given).requires_grad_()
        theirs = getattr(torch.nn, name)(8, eps=1e-5).to(own)
        torch.nn.init.uniform_(theirs.weight, 0.5, 1.5)
        model = torch.nn.Sequential(copy(theirs))  # with the same parameters
        nn.replace_norms(model, memory_efficient)
        try:
            want = theirs(leaf)
        except RuntimeError as error:
            if given == torch.float32 and own != torch.float64:
                continue  # which normlab takes
            with pytest.raises(RuntimeError, match=str(error)[:11]):  # "mixed dtype"
                model(leaf)
            continue
        got = model(leaf)
        assert got.dtype == want.dtype == given
        found, wanted = (torch.autograd.grad(one, (leaf, theirs.weight), dy.to(given)) for one in (got, want))
        tolerance = 5e-2 if torch.bfloat16 in (given, own) else 1e-2 if torch.float16 in (given, own) else 1e-5
        for one, other in ((got, want), *zip(found, wanted, strict=True)):
            assert one.dtype == other.dtype
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
