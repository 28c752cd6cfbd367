"""What a step of the SGEMM ladder is given, and what it tells the rest of the house about itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from normlab.stages.vector import widest


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
    def operands(self) -> tuple:
        """The arguments of every kernel, in order."""
        return self.alpha, self.a, self.b, self.beta, self.c, self.output

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
class ProductStep:
    """One rung. Each element of C is one chain of K fused additions, k = 0 first, in every step: the bits are the same.

    Attributes:
        name: what `step=` of `normlab.sgemm` takes.
        summary: one line.
        run: `run(launch, product)` queues the kernel; the operands are such as `engine.launch` takes.
        tile: rows and columns of C that a block computes, and the k's that it goes on by at a time.
        tile_seconds: about how long the simulator takes for one block to go on once (2 cores at 2.5 GHz).
    """

    name: str
    summary: str
    run: Callable[[Callable[..., None], Product], None]
    tile: tuple[int, int, int]
    tile_seconds: float

    def simulated_seconds(self, m: int, n: int, k: int) -> float:
        """About how long the simulator takes for (M, K) times (K, N); edges are computed as whole tiles."""
        rows, columns, depth = self.tile
        return self.tile_seconds * -(-m // rows) * -(-n // columns) * (1 + -(-k // depth))
