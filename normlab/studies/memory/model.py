"""Build a decoder with LLaMA's blocks over bytes: `normlab memory` measures it, `normlab train` trains it.

A block adds to the residual stream twice: attention with rotary positions, then a SwiGLU MLP. Each of the two reads the
stream through a norm of its own.

The model shows what a norm that recomputes saves. For the backward, an addition keeps nothing, and a linear layer keeps
its input, which here is a norm's output. So only the norm needs the norm's input. A norm whose backward reads the
output instead needs no activation that the linear layers do not keep anyway.

The norms are torch.nn's; `normlab.studies.memory.variants` exchanges them.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Embedding, LayerNorm, Linear, Module, ModuleList, RMSNorm
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu

NORMS: dict[str, type[Module]] = {"layer": LayerNorm, "rms": RMSNorm}
EPS = 1e-5
VOCABULARY = 256  # a token is a byte
HEAD = 128  # columns per attention head, as in LLaMA
SPREAD = 0.02  # standard deviation of every initial weight
CPU_SPEED = 5e10  # additions and multiplications per second, roughly
LONGEST_WAVE = 10_000.0  # base of the rotary angles: the slowest pair of columns turns by 1 in nearly so many tokens


class Shape(NamedTuple):
    """A model's sizes, its norm ("layer" or "rms") and its dtype; and the (batch, sequence) bytes that a step reads."""

    layers: int
    hidden: int
    batch: int
    sequence: int
    norm: str
    dtype: str

    @property
    def heads(self) -> int:
        """Return the number of attention heads, of HEAD columns each; 1 if HEAD does not divide hidden."""
        return 1 if self.hidden % HEAD else self.hidden // HEAD

    @property
    def inner(self) -> int:
        """Return the columns inside the MLP: 8/3 of hidden, rounded up to a multiple of 256, as in LLaMA."""
        return -(-8 * self.hidden // (3 * 256)) * 256

    @property
    def tokens(self) -> int:
        """Return the tokens of a batch."""
        return self.batch * self.sequence

    @property
    def norms(self) -> int:
        """Return the number of norms: two per block, and one before the head."""
        return 2 * self.layers + 1

    @property
    def parameters(self) -> int:
        """Return the number of trained numbers, of the embedding and the head too."""
        block = 4 * self.hidden**2 + 3 * self.hidden * self.inner
        norm = self.hidden * (2 if self.norm == "layer" else 1)
        return self.layers * block + self.norms * norm + 2 * VOCABULARY * self.hidden

    @property
    def seconds(self) -> float:
        """Return about how long a step takes on a CPU.

        A parameter takes part in 2 operations per token in the forward, and in 4 in the backward.
        """
        return 6 * self.parameters * self.tokens / CPU_SPEED

    def check(self) -> None:
        """Raise ValueError for an odd hidden, because rotary positions turn pairs of columns."""
        if self.hidden % 2:
            raise ValueError(f"--hidden {self.hidden}: an even number is needed, for rotary positions")


class Attention(Module):
    """Causal attention with rotary positions: (batch, sequence, hidden) to the same."""

    def __init__(self, shape: Shape, **like: Any) -> None:
        super().__init__()
        self.heads = shape.heads
        self.q, self.k, self.v, self.o = (Linear(shape.hidden, shape.hidden, bias=False, **like) for _ in range(4))

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """Let each position of x, a norm's output, attend to itself and earlier ones; rotary: from `rotary_tables`."""
        q, k, v = (linear(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for linear in (self.q, self.k, self.v))
        # (batch, heads, sequence, columns of a head)
        attended = scaled_dot_product_attention(rotated(q, rotary), rotated(k, rotary), v, is_causal=True)
        return self.o(attended.transpose(1, 2).flatten(-2))


class SwiGLU(Module):
    """down(silu(gate) up): (…, hidden) to the same."""

    def __init__(self, shape: Shape, **like: Any) -> None:
        super().__init__()
        self.gate, self.up = (Linear(shape.hidden, shape.inner, bias=False, **like) for _ in range(2))
        self.down = Linear(shape.inner, shape.hidden, bias=False, **like)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the MLP to x, a norm's output."""
        return self.down(silu(self.gate(x)) * self.up(x))


class Block(Module):
    """Two norms, and the attention and the MLP that read them."""

    def __init__(self, shape: Shape, **like: Any) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = (NORMS[shape.norm](shape.hidden, eps=EPS, **like) for _ in range(2))
        self.attention, self.mlp = Attention(shape, **like), SwiGLU(shape, **like)

    def forward(self, stream: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """Add attention and MLP to the stream: (batch, sequence, hidden).

        The additions and the norms are statements of their own, which `fuse_residual` can make one call.
        """
        residual = stream
        stream = self.attention_norm(stream)
        stream = residual + self.attention(stream, rotary)
        residual = stream
        stream = self.mlp_norm(stream)
        return residual + self.mlp(stream)


class Decoder(Module):
    """The whole model: forward(inputs, targets), both (batch, sequence) int64, returns the mean cross entropy.

    The loss is a float32 scalar. `__init__` leaves the parameters uninitialised; `reset` sets them.
    """

    def __init__(self, shape: Shape, device: str) -> None:
        super().__init__()
        like = {"device": "meta", "dtype": getattr(torch, shape.dtype)}  # "meta": draw no values, `reset` does
        self.head_columns = shape.hidden // shape.heads
        self.embedding = Embedding(VOCABULARY, shape.hidden, **like)
        self.blocks = ModuleList(Block(shape, **like) for _ in range(shape.layers))
        self.norm = NORMS[shape.norm](shape.hidden, eps=EPS, **like)
        self.head = Linear(shape.hidden, VOCABULARY, bias=False, **like)
        self.to_empty(device=device)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of predicting each target from the inputs up to its position."""
        stream = self.embedding(inputs)
        rotary = rotary_tables(inputs.shape[1], self.head_columns, stream)
        for block in self.blocks:
            stream = block(stream, rotary)
        logits = self.head(self.norm(stream))
        return cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    @torch.no_grad()
    def reset(self, seed: int, norm_weight: float = 1.0) -> None:
        """Set all parameters anew: matrices at random by `seed`, the norms' weights to `norm_weight`, biases to 0."""
        random = torch.Generator(self.head.weight.device).manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, SPREAD, generator=random)
            else:
                parameter.fill_(norm_weight if name.endswith("weight") else 0.0)
            parameter.grad = None


def rotary_tables(sequence: int, columns: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return (cos, sin) of each position's angle in each column: (sequence, columns) each, in the dtype of `like`.

    Columns i and i + columns / 2 form a pair, and have the same angle. Computed in float32.
    """
    wide: dict[str, Any] = {"dtype": torch.float32, "device": like.device}
    waves = LONGEST_WAVE ** -(torch.arange(0, columns, 2, **wide) / columns)
    angles = torch.outer(torch.arange(sequence, **wide), waves).repeat(1, 2)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotated(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Return x (…, sequence, columns) with each pair of columns turned, as a point in the plane, by its angle.

    Columns i and i + columns / 2 form a pair; columns: of one head.
    """
    cos, sin = rotary
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin
