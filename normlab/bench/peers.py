"""Call each peer as its users call it, without the host side of autograd where the peer allows that.

PEERS maps a peer's name to a function that imports it and returns its contenders (`normlab.bench.contenders`); the
function raises ImportError if the peer is not installed. Each class says what its timed call leaves out.
"""

import os
from collections.abc import Callable
from typing import Any

from normlab.bench.problem import DIRECTIONS, EPS, Data


class UnsupportedError(Exception):
    """Raised if a peer does not have a norm."""


class ByAutograd:
    """A function of torch tensors: forward without gradients, backward by `torch.autograd.grad` on a kept graph."""

    memory_efficient = False
    directions: tuple[str, ...] = DIRECTIONS

    def __init__(self, name: str, function: Callable[..., Any]):
        self.name, self.function = name, function

    def forward(self, data: Data) -> Callable[[], tuple]:  # noqa: D102
        function = self.prepared()
        return lambda: (function(data.x, data.shape, *data.parameters), None, None)

    def backward(self, data: Data) -> Callable[[], tuple]:  # noqa: D102
        import torch

        leaves = [tensor.detach().requires_grad_() for tensor in (data.x, *data.parameters)]
        output = self.prepared()(leaves[0], data.shape, *leaves[1:])
        absent = (None,) * (3 - len(leaves))
        return lambda: (*torch.autograd.grad(output, leaves, data.grad_output, retain_graph=True), *absent)

    def prepared(self) -> Callable[..., Any]:
        """Return the function for one problem."""
        return self.function


def _norm(x: Any, shape: tuple, weight: Any, bias: Any = None) -> Any:
    """Compute PyTorch's own norm: RMSNorm without a bias, else LayerNorm."""
    from torch.nn import functional

    if bias is None:
        return functional.rms_norm(x, shape, weight, EPS)
    return functional.layer_norm(x, shape, weight, bias, EPS)


def _norm_and_statistics(x: Any, shape: tuple, weight: Any, bias: Any = None) -> tuple:
    """Compute the same norms by ATen's operators: (output, …, invvar)."""
    import torch

    if bias is None:
        return torch.ops.aten._fused_rms_norm(x, shape, weight, EPS)
    return torch.native_layer_norm(x, shape, weight, bias, EPS)


class Compiled(ByAutograd):
    """`torch.compile` of PyTorch's norms, compiled anew for the shape of each problem.

    Its forward is a training step's, which writes the statistics, as all here do except `CompiledForInference`.
    """

    def forward(self, data: Data) -> Callable[[], tuple]:  # noqa: D102
        function = self.compiled(_norm_and_statistics)
        return lambda: (function(data.x, data.shape, *data.parameters)[0], None, None)

    def prepared(self) -> Callable[..., Any]:  # noqa: D102
        return self.compiled(self.function)

    @staticmethod
    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, compiled for what it is called with first."""
        import torch
        from torch import _dynamo, _functorch

        _dynamo.reset()  # else it gives up compiling after a few shapes
        _functorch.config.donated_buffer = False  # a compiled backward may else run only once
        return torch.compile(function, dynamic=False)


class CompiledForInference(Compiled):
    """`torch.compile` of a forward without gradients, which leaves the statistics out.

    That is less work than every other contender does: at n2 = 768 in 16 bits 1 to 2 % less time than `Compiled`.
    """

    directions = ("forward",)

    def forward(self, data: Data) -> Callable[[], tuple]:  # noqa: D102
        import torch

        function = self.compiled(self.function)

        def call() -> tuple:
            with torch.no_grad():
                return function(data.x, data.shape, *data.parameters), None, None

        return call


class Liger:
    """liger-kernel's functions below its autograd wrappers, with those wrappers' defaults."""

    name, memory_efficient, directions = "liger", False, DIRECTIONS

    def __init__(self) -> None:
        from liger_kernel.ops import layer_norm, rms_norm

        self.layer, self.rms = layer_norm, rms_norm

    def forward(self, data: Data) -> Callable[[], tuple]:  # noqa: D102
        if data.bias is None:
            return lambda: _pick(self.rms.rms_norm_forward(data.x, data.weight, EPS, 0.0, "llama", None), 0, None, 2)
        return lambda: _pick(self.layer.layer_norm_forward(data.x, data.weight, data.bias, EPS), 0, 2, 3)

    def backward(self, data: Data) -> Callable[[], tuple]:  # noqa: D102
        if data.bias is None:
            forward = self.rms.rms_norm_forward(data.x, data.weight, EPS, 0.0, "llama", None)
            _, _, rstd, block_size, num_warps, casting_mode = forward
            dy = data.grad_output.clone()  # its default writes grad_input over it
            rest = (0.0, casting_mode, block_size, num_warps, True, None)
            return lambda: (*self.rms.rms_norm_backward(dy, data.x, data.weight, rstd, *rest), None)
        _, _, mean, rstd, *_ = self.layer.layer_norm_forward(data.x, data.weight, data.bias, EPS)
        dy = data.grad_output
        return lambda: self.layer.layer_norm_backward(dy, data.x, data.weight, data.bias, mean, rstd)


class Quack:
    """quack-kernels below its autograd wrappers; its LayerNorm takes float32 weights, whose cast is not timed."""

    name, memory_efficient, directions = "quack", False, DIRECTIONS

    def __init__(self) -> None:
        from quack.rmsnorm import layernorm_bwd, layernorm_fwd, rmsnorm_bwd, rmsnorm_fwd

        self.layer, self.layer_gradient = layernorm_fwd, layernorm_bwd
        self.rms, self.rms_gradient = rmsnorm_fwd, rmsnorm_bwd

    def forward(self, data: Data) -> Callable[[], tuple]:  # noqa: D102
        if data.bias is None:
            return lambda: _pick(self.rms(data.x, data.weight, eps=EPS, store_rstd=True), 0, None, 2)
        parameters = data.weight.float(), data.bias.float()
        rest = {"eps": EPS, "return_rstd": True, "return_mean": True}
        return lambda: _pick(self.layer(data.x, *parameters, **rest), 0, 2, 1)

    def backward(self, data: Data) -> Callable[[], tuple]:  # noqa: D102
        _, mean, rstd = self.forward(data)()
        if data.bias is None:
            return lambda: _pick(self.rms_gradient(data.x, data.weight, data.grad_output, rstd), 0, 1, None)
        weight = data.weight.float()
        return lambda: self.layer_gradient(data.x, weight, data.grad_output, rstd, mean, True)


class Apex:
    """apex's extension module, which its autograd functions call; `memory_efficient` as there."""

    def __init__(self, name: str, memory_efficient: bool):
        import fused_layer_norm_cuda

        self.apex, self.name, self.memory_efficient = fused_layer_norm_cuda, name, memory_efficient
        self.directions = ("backward",) if memory_efficient else DIRECTIONS

    def forward(self, data: Data) -> Callable[[], tuple]:  # noqa: D102
        x, shape = data.x, data.shape
        if data.bias is None:
            return lambda: _pick(self.apex.rms_forward_affine(x, shape, data.weight, EPS), 0, None, 1)
        return lambda: tuple(self.apex.forward_affine(x, shape, data.weight, data.bias, EPS))

    def backward(self, data: Data) -> Callable[[], tuple]:  # noqa: D102
        output, mean, invvar = self.forward(data)()
        saved = output if self.memory_efficient else data.x
        dy, shape, weight, bias, rest = data.grad_output, data.shape, data.weight, data.bias, self.memory_efficient
        if bias is None:
            return lambda: (*self.apex.rms_backward_affine(dy, invvar, saved, shape, weight, EPS, rest), None)
        mean = None if self.memory_efficient else mean
        return lambda: tuple(self.apex.backward_affine(dy, mean, invvar, saved, shape, weight, bias, EPS, rest))


def _pick(results: Any, *positions: int | None) -> tuple:
    return tuple(None if position is None else results[position] for position in positions)


def _tutorial() -> list[Any]:
    import triton  # noqa: F401  # before the path is looked at: its ImportError says what to install first

    from normlab.bench.tutorial import layer_norm_of

    path = os.environ.get("NORMLAB_TRITON_TUTORIAL")
    if not path:
        raise ImportError("NORMLAB_TRITON_TUTORIAL does not say where Triton's tutorial 05-layer-norm.py is")
    apply = layer_norm_of(path)

    def norm(x: Any, shape: tuple, weight: Any, bias: Any = None) -> Any:
        if bias is None:
            raise UnsupportedError("the tutorial has no RMSNorm")
        return apply(x, shape, weight, bias, EPS)

    return [ByAutograd("triton", norm)]


PEERS: dict[str, Callable[[], list[Any]]] = {
    "torch": lambda: [ByAutograd("torch", _norm)],
    "compile": lambda: [Compiled("compile", _norm)],
    "liger": lambda: [Liger()],
    "quack": lambda: [Quack()],
    "apex": lambda: [Apex("apex", False), Apex("apex-me", True)],
    "triton": _tutorial,
    "compile-inference": lambda: [CompiledForInference("compile-inference", _norm)],
}
ON_REQUEST = ("compile-inference",)  # its forward does less than the others' do, which save for a backward
