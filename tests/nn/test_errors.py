"""Mistakes are told in PyTorch's words: each is made with PyTorch's norm, too, and the texts compared."""

import numpy as np
import pytest
import torch
from torch.nn.functional import layer_norm, rms_norm

from normlab import nn

X, ONE = torch.ones(2, 4), torch.ones(4)
# arguments of layer_norm; of rms_norm, too, where there is no bias
SHAPES = {
    "no dimension": (X, ()),
    "other columns": (X, (5,)),
    "more dimensions": (X, (3, 2, 4)),
    "negative": (X, (-1,)),
    "weight's shape": (X, (4,), torch.ones(5)),
    "weight's dimensions": (X, (4,), torch.ones(1, 4)),
    "bias's shape": (X, (4,), None, torch.ones(5)),
    "both": (X, (4,), torch.ones(5), torch.ones(6)),
    "all": (X, (5,), torch.ones(6)),
}
KINDS = {
    "a list": ([1.0], (1,)),
    "a float size": (X, (4.0,)),
    "a float": (X, 4.0),
    "a text": (X, "4"),
    "nothing": (X, None),
    "a list for weight": (X, (4,), [1.0]),
    "a list for bias": (X, (4,), None, [1.0]),
    "a text for eps": (X, (4,), None, None, "1e-5"),
    "no eps": (X, (4,), None, None, None),
}


def told(function, *arguments) -> tuple[type, str]:
    with pytest.raises((RuntimeError, TypeError, ValueError, NotImplementedError)) as raised:
        function(*arguments)
    return raised.type, str(raised.value)


@pytest.mark.parametrize("arguments", [*SHAPES.values(), *KINDS.values()], ids=[*SHAPES, *KINDS])
def test_layer_norm_tells_what_torch_tells(arguments):
    assert told(nn.layer_norm, *arguments) == told(layer_norm, *arguments)


@pytest.mark.parametrize("arguments", SHAPES.values(), ids=SHAPES)
def test_every_function_tells_the_same(arguments):
    x, shape, weight, bias = (*arguments, None, None)[:4]
    want = told(layer_norm, *arguments)
    assert told(nn.fused_layer_norm_affine, x, weight, bias, shape) == want
    assert told(nn.mixed_dtype_fused_layer_norm_affine, x, weight, bias, shape) == want
    if bias is None:
        want = told(rms_norm, x, shape, weight)
        assert told(nn.rms_norm, x, shape, weight) == want
        assert told(nn.fused_rms_norm_affine, x, weight, shape) == want
        assert told(nn.mixed_dtype_fused_rms_norm_affine, x, weight, shape) == want
    if weight is None and bias is None:
        assert told(nn.fused_layer_norm, x, shape) == told(layer_norm, x, shape)
        assert told(nn.fused_rms_norm, x, shape) == want


def test_positions_are_the_called_function_s():
    assert told(nn.rms_norm, [1.0], (1,)) == told(rms_norm, [1.0], (1,))
    for shape in ((4.0,), 4.0, "4", None, (True,), torch.tensor(4)):
        assert told(nn.rms_norm, X, shape) == told(rms_norm, X, shape)
        assert told(nn.layer_norm, X, shape) == told(layer_norm, X, shape)
    kind, text = told(nn.fused_rms_norm_affine, X, ONE, (4.0,))
    assert (kind, text) == (
        TypeError,
        "fused_rms_norm_affine(): argument 'normalized_shape' (position 3) must be tuple of ints, "
        "but found element of type float at pos 0",
    )


def test_dtypes_and_devices():
    for dtype in (torch.int32, torch.complex64, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2):
        x = X.to(dtype)
        assert told(nn.layer_norm, x, (4,)) == told(nn.fused_layer_norm, x, (4,)) == told(layer_norm, x, (4,))
        assert told(nn.layer_norm, x, (4,), ONE) == told(layer_norm, x, (4,), ONE)
        kind, text = told(nn.rms_norm, x, (4,))
        assert kind is NotImplementedError
        assert text.startswith('"rms_norm" not implemented for ')
    assert told(nn.rms_norm, X.int(), (4,)) == told(rms_norm, X.int(), (4,))
    assert told(nn.layer_norm, X, (4,), ONE, ONE.half()) == told(layer_norm, X, (4,), ONE, ONE.half())
    for weight in (ONE.double(), ONE.int()):
        kind, text = told(nn.layer_norm, X, (4,), weight)
        theirs = told(layer_norm, X, (4,), weight)
        assert kind is theirs[0]
        assert text.startswith(theirs[1] + ", but got ")
    kind, text = told(nn.layer_norm, X, (4,), ONE.to("meta"))
    assert (kind, text) == (
        RuntimeError,
        "Expected all tensors to be on the same device, but found at least two devices, cpu and meta!",
    )


@pytest.mark.parametrize("mode", ["Exact", None, 1, 2, 0.5])
def test_another_memory_efficient_is_named(mode):
    with pytest.raises(ValueError, match='memory_efficient must be False, True or "exact", got '):
        nn.fused_layer_norm(X, 4, memory_efficient=mode)


def test_another_mode_is_refused_when_a_module_is_made():
    for module in (nn.FusedLayerNorm, nn.FusedRMSNorm):
        with pytest.raises(ValueError, match="memory_efficient must be False, True or \"exact\", got 'exactly'"):
            module(4, memory_efficient="exactly")


def test_an_option_or_a_model_that_is_none_is_named():
    for function in (nn.layer_norm, nn.rms_norm):
        assert told(lambda function=function: function(X, 4, dtype_rule="foo")) == (
            ValueError,
            "dtype_rule must be one of 'apex', 'torch', 'input', 'parameters', 'wider', got 'foo'",
        )
    for function in (nn.replace_norms, nn.recount):
        kind, text = told(function, 5)
        assert (kind, text) == (
            TypeError,
            f"{function.__name__}(): argument 'model' (position 1) must be a torch.nn.Module, not int",
        )
    for kind in (nn.MixedFusedLayerNorm, nn.MixedFusedRMSNorm):
        want = TypeError, f"{kind.__name__}.__init__() got an unexpected keyword argument 'foo'"
        assert told(lambda kind=kind: kind(8, foo=1)) == want


def test_a_number_of_numpy_s_is_an_eps():
    x = torch.randn(2, 4)
    assert torch.equal(nn.layer_norm(x, 4, eps=np.float32(0.5)), nn.layer_norm(x, 4, eps=0.5))
