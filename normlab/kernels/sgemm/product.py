"""What a step of the SGEMM ladder is given, and what it tells the rest of the house about itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from normlab.engine import DeviceArray
from normlab.kernels.plan import Chains, Device, Plan, Work
from normlab.kernels.problem import at_least_one
from normlab.kernels.step import Rung
from normlab.kernels.words import counted
from normlab.stages.vector import widest

OPERANDS = "alpha", "a", "b", "beta", "c", "output"  # the arguments of every kernel, in order


@dataclass(frozen=True)
class Product:
    """The operands of output = alpha A B + beta C, all float32 and row-major.

    alpha, beta: NumPy float32. a: (M, K); b: (K, N); output: (M, N), M and N > 0; c: (M, N), or None for beta = 0.
    """

    alpha: np.float32
    a: Any
    b: Any
    beta: np.float32
    c: Any
    output: Any

    @property
    def reading(self) -> tuple:
        """Return the matrices that come in."""
        return tuple(given for given in (self.a, self.b, self.c) if given is not None)

    @property
    def writing(self) -> tuple:
        """Return the matrices that go out."""
        return (self.output,)

    @property
    def widths(self) -> "Widths":
        """What one instruction can move of these operands, wherever they begin and however long their rows are."""
        n = self.output.shape[1]
        return Widths(widest(self.a.shape[1], self.a), widest(n, self.b), widest(n, self.c, self.output))

    def blocks(self, rows: int, columns: int) -> int:
        """How many tiles of this size cover C."""
        m, n = self.output.shape
        return -(-m // rows) * -(-n // columns)


class Widths(NamedTuple):
    """Elements that one instruction moves: of A, of B, and of C and the output; 1, 2 or 4."""

    a: int
    b: int
    c: int


@dataclass(frozen=True)
class ProductProblem:
    """A product to be planned: (M, K) times (K, N), without arrays.

    added: is there a C? alignment: bytes, a power of two that all addresses are multiples of.

    Raises:
        ValueError: one of them is something else.
    """

    m: int
    n: int
    k: int
    added: bool = False
    alignment: int = 256

    def __post_init__(self) -> None:
        """Check what was given."""
        for name in ("m", "n", "k"):
            at_least_one(name, getattr(self, name))
        if self.alignment < 4 or self.alignment & (self.alignment - 1):
            raise ValueError(f"alignment must be a power of two and at least 4 bytes, got {self.alignment}")

    def described(self) -> Product:
        """Return operands whose arrays have shapes and alignments, but no memory."""

        def array(*shape: int) -> DeviceArray:
            return DeviceArray(self.alignment, shape, np.dtype(np.float32), 0, None)

        c = array(self.m, self.n) if self.added else None
        a, b, output = array(self.m, self.k), array(self.k, self.n), array(self.m, self.n)
        return Product(np.float32(1), a, b, np.float32(self.added), c, output)


@dataclass(frozen=True)
class ProductStep(Rung):
    """One rung. Each element of C is one chain of K fused additions, k = 0 first, in every step: the bits are the same.

    Attributes:
        tile: rows and columns of C that a block computes, and the k's that it goes on by at a time.
        tile_seconds: about how long the simulator takes for one block to go on once (2 cores at 2.5 GHz).
    """

    tile: tuple[int, int, int]
    tile_seconds: float

    def run(self, launch: Callable[..., None], product: Product) -> None:
        """Queue the kernel; the operands are such as `engine.launch` takes."""
        self.do(launch, None, product, Device.of(product.output))

    def simulated_seconds(self, m: int, n: int, k: int) -> float:
        """About how long the simulator takes for (M, K) times (K, N); edges are computed as whole tiles."""
        rows, columns, depth = self.tile
        return self.tile_seconds * -(-m // rows) * -(-n // columns) * (1 + -(-k // depth))


def product_plan(
    step: str,
    product: Product,
    kernel: tuple[Callable[..., Any], tuple],
    tile: tuple[int, int, int],
    block: int | tuple[int, int],
    why: str,
    shared_bytes: int = 0,
) -> Plan:
    """Return the plan of a step; kernel: what builds it, and with which options. A block computes a tile of C."""
    rows, columns, _ = tile
    work = Work(*kernel, product.blocks(rows, columns), block, OPERANDS, shared_bytes)
    return Plan(step, (work,), why, Chains(product.a.shape[1], 0), layout=Tile(tile, block))


class Tile(NamedTuple):
    """What a block computes, and by how many threads."""

    tile: tuple[int, int, int]
    block: int | tuple[int, int]

    @property
    def words(self) -> list[str]:
        """Return each number in words."""
        rows, columns, depth = self.tile
        threads = self.block if isinstance(self.block, int) else self.block[0] * self.block[1]
        return [
            f"a tile of {rows} x {columns} elements of C per block, {counted(threads, 'thread')}",
            f"{counted(rows * columns // threads, 'element')} of C per thread",
            f"{counted(depth, 'k')} at a time" if depth == 1 else f"{depth} k at a time",
        ]
