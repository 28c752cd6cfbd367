"""Define what all steps of the SGEMM ladder share: their operands, their problem, the step itself and its plan."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from normlab.engine import DeviceArray
from normlab.kernels.plan import Chains, Plan, Work
from normlab.kernels.problem import at_least_one, check_alignment
from normlab.kernels.step import Rung
from normlab.kernels.words import counted
from normlab.stages.vector import widest

OPERANDS = "alpha", "a", "b", "beta", "c", "output"  # the arguments of every kernel, in order


@dataclass(frozen=True)
class Product:
    """Hold the operands of output = alpha A B + beta C, all float32 and row-major.

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
        """Return how many elements of each operand one instruction can move, given its address and its row length."""
        n = self.output.shape[1]  # the row length of B, C and the output
        # Three widths, because A's rows have K elements and the others' N: one odd length need not narrow all loads.
        return Widths(widest(self.a.shape[1], self.a), widest(n, self.b), widest(n, self.c, self.output))

    def blocks(self, rows: int, columns: int) -> int:
        """Return how many tiles of rows x columns elements cover C: the grid."""
        m, n = self.output.shape
        # The last tiles may reach past the matrix.
        return -(-m // rows) * -(-n // columns)


class Widths(NamedTuple):
    """Hold how many elements one instruction moves: of A, of B, and of both C and the output; each 1, 2 or 4."""

    a: int
    b: int
    c: int


@dataclass(frozen=True)
class ProductProblem:
    """Describe a product to be planned, (M, K) times (K, N), without arrays.

    added: whether there is a C. alignment: in bytes; all addresses are multiples of it.

    Raises:
        ValueError: m, n or k is less than one, or the alignment is no power of two or below 4.
    """

    m: int
    n: int
    k: int
    added: bool = False
    alignment: int = 256

    def __post_init__(self) -> None:
        """Raise ValueError for a size or an alignment that no product has."""
        for name in ("m", "n", "k"):
            at_least_one(name, getattr(self, name))
        check_alignment(self.alignment, 4)

    def described(self) -> Product:
        """Return operands whose arrays have shapes and alignments, but no memory."""

        def array(*shape: int) -> DeviceArray:
            return DeviceArray(self.alignment, shape, np.dtype(np.float32), 0, None)

        # without C the kernel is another one: it has no load and no bounds check for it
        c = array(self.m, self.n) if self.added else None
        # One address for all is enough: only alignments are looked at.
        a, b, output = array(self.m, self.k), array(self.k, self.n), array(self.m, self.n)
        return Product(np.float32(1), a, b, np.float32(self.added), c, output)


@dataclass(frozen=True)
class ProductStep(Rung):
    """Hold one step of the SGEMM ladder.

    In every step each element of C is one chain of K fused multiply-adds, k = 0 first, so all steps give the same bits.
    """

    def simulated_seconds(self, m: int, n: int, k: int) -> float:
        """Return about how many seconds the simulator takes for (M, K) times (K, N) (2 cores at 2.5 GHz)."""
        return 0.2 + 60e-9 * m * n * k


def product_plan(
    step: str,
    product: Product,
    kernel: tuple[Callable[..., Any], tuple],
    tile: tuple[int, int, int],
    block: int | tuple[int, int],
    why: str,
    shared_bytes: int = 0,
) -> Plan:
    """Return the plan of a step's only kernel, with a block per tile of C.

    kernel: the function that builds the kernel, and the arguments of that function. tile: as in `ProductStep`. block:
    threads per block. why: the plan's reason. shared_bytes: dynamic shared memory per block.
    """
    rows, columns, _ = tile
    work = Work(*kernel, product.blocks(rows, columns), block, OPERANDS, shared_bytes)
    # an element of C is one chain of K additions in one thread: no merges
    return Plan(step, (work,), why, Chains(product.a.shape[1], 0), layout=Tile(tile, block))


class Tile(NamedTuple):
    """Hold the layout of a product's plan: what a block computes, and with how many threads."""

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
