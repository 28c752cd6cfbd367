"""Define what is timed: a norm, a direction, a dtype, n1 rows of n2; the bytes it must move, and its data."""

from dataclasses import dataclass
from itertools import product
from typing import Any

from normlab.host.arrays import FLOATS

NORMS = ("layer", "rms")
DIRECTIONS = ("forward", "backward")
EPS = 1e-5
ELEMENTS = 2**27  # of an array: 256 MiB in half precision, five times the L2 of an H200
WIDTHS = (768, 1024, 2048, 4096, 5120, 8192, 16384, 65536)


@dataclass(frozen=True)
class Data:
    """The arrays of a problem, torch tensors on one device; weight lies in [0.5, 1.5), all else is standard normal.

    x, grad_output: (n1, n2); weight: (n2,); bias: (n2,), None for RMSNorm. All have the problem's dtype.
    """

    x: Any
    weight: Any
    bias: Any
    grad_output: Any

    @property
    def parameters(self) -> tuple:
        """Return the weight, and for LayerNorm the bias."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return normalized_shape."""
        return tuple(self.weight.shape)


@dataclass(frozen=True)
class Problem:
    """LayerNorm with weight and bias ("layer") or RMSNorm with weight ("rms"), on (n1, n2) elements of a dtype."""

    norm: str
    direction: str
    dtype: str
    n1: int
    n2: int

    @property
    def array_bytes(self) -> int:
        """Return the bytes of one array of (n1, n2)."""
        return self.n1 * self.n2 * FLOATS[self.dtype].itemsize

    @property
    def bytes(self) -> int:
        """Return the least to move: a forward reads x and writes y; a backward reads two arrays and writes grad_input.

        Parameters and statistics, n2 and n1 numbers where the arrays have n1 n2, are not counted.
        """
        return (2 if self.direction == "forward" else 3) * self.array_bytes

    def draw(self, device: str) -> Data:
        """Return random data, the same every time."""
        import torch

        dtype = getattr(torch, self.dtype)
        generator = torch.Generator(device).manual_seed(self.n2)

        def normal(*shape: int) -> Any:
            return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype)

        weight = torch.rand(self.n2, generator=generator, device=device).add(0.5).to(dtype)
        bias = normal(self.n2) if self.norm == "layer" else None
        return Data(normal(self.n1, self.n2), weight, bias, normal(self.n1, self.n2))


def problems(
    norms: list[str], directions: list[str], dtypes: list[str], n1: list[int], n2: list[int], elements: int = ELEMENTS
) -> list[Problem]:
    """Return all combinations, in the order of a table; without n1 as many rows as make up `elements`, at least one."""
    return [
        Problem(norm, direction, dtype, rows or max(1, elements // columns), columns)
        for direction, norm, dtype, columns, rows in product(directions, norms, dtypes, n2, n1 or [0])
    ]
