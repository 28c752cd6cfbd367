"""Compute the heat map of an array: how often each element was accessed, as a table small enough to draw.

The HTML report draws from these numbers.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from normlab.sim.tracing.heat import Heat

MOST_CELLS = 64  # along each axis


@dataclass(frozen=True)
class HeatGrid:
    """How often the elements of an array were accessed, as a table small enough to draw.

    `cells`: (rows, columns) accesses per element, the mean over the `tall` x `wide` elements of a cell; NaN where there
    is no element. `shape`: (rows, columns) in elements. `counts`: what is counted, "loads" or "stores".
    """

    subject: str
    cells: np.ndarray
    tall: int
    wide: int
    shape: tuple[int, int]
    counts: str
    total: int
    touched: int
    elements: int
    axes: tuple[str, str]  # what runs along x and y

    @property
    def numbers(self) -> str:
        """Say in words what the map shows."""
        share = self.touched / self.elements
        return f"{self.total:,} {self.counts}; {self.touched:,} of {self.elements:,} elements touched ({share:.0%})"

    @property
    def binning(self) -> str:
        """Say in words what a cell stands for."""
        if self.tall == self.wide == 1:
            return "accesses per element"
        return f"accesses per element, mean of {self.tall} x {self.wide} elements per cell"


def heat_grid(heat: Heat, operation: str, blocks: int = 1) -> HeatGrid:
    """Return the accesses of an array as a table: 1-D wrapped into rows, 3-D and more flattened to rows.

    `operation`: "ld" or "st". `blocks`: of the launch. The array has an element at least.
    """
    counts: Any = heat.counted(stores=operation == "st").astype(np.int64)
    width = _row_length(counts.size)
    if counts.ndim <= 1:
        rows = -(-counts.size // width)
        # The last row may be longer than the array: NaN, which is no count, marks where there is no element.
        table = np.full(rows * width, np.nan)
        table[: counts.size] = counts.reshape(-1)
        table = table.reshape(rows, width)
    else:
        table = counts.reshape(-1, counts.shape[-1]).astype(float)
    # Each block has a shared array of its own, and `Heat` counts them as one.
    together = f", those of {blocks:,} blocks together" if heat.space == "shared" and blocks > 1 else ""
    # Whole elements per cell, rounded up, so that at most 64 cells stand along each axis.
    tall, wide = (-(-extent // MOST_CELLS) for extent in table.shape)
    return HeatGrid(
        subject=f"{heat.space} array {heat.name!r}, shape {heat.shape}{together}",
        cells=_binned(table, tall, wide),
        tall=tall,
        wide=wide,
        shape=(table.shape[0], table.shape[1]),
        counts={"ld": "loads", "st": "stores"}[operation],
        total=int(counts.sum()),
        touched=int((counts > 0).sum()),
        elements=counts.size,
        axes=_axes(counts.shape, width),
    )


def _axes(shape: tuple[int, ...], width: int) -> tuple[str, str]:
    """Return what runs along x and y."""
    if len(shape) <= 1:
        return f"index, in rows of {width}", "row"
    if len(shape) == 2:
        return "index along axis 1", "index along axis 0"
    return f"index along axis {len(shape) - 1}", "index along all other axes, flattened"


def _row_length(size: int) -> int:
    """Return a warp's 32 elements, or the power of two that makes a long array about as tall as wide."""
    # A power of two, as numbers of threads and strides are: accesses that repeat at such a distance stand in columns.
    return min(size, max(32, 1 << round(np.log2(size) / 2)))


def _binned(table: np.ndarray, tall: int, wide: int) -> np.ndarray:
    """Return the mean of each `tall` x `wide` block of a table, over the elements that there are."""
    rows, columns = (-(-extent // step) for extent, step in zip(table.shape, (tall, wide), strict=True))
    # A table that is no whole number of cells is padded, because `reshape` cuts into equal blocks only.
    padded = np.full((rows * tall, columns * wide), np.nan)
    padded[: table.shape[0], : table.shape[1]] = table
    blocks = padded.reshape(rows, tall, columns, wide).swapaxes(1, 2).reshape(rows, columns, -1)
    # NaN marks the padding: the mean is taken over the elements that exist.
    there = ~np.isnan(blocks)
    count = there.sum(axis=2)
    # Not `nanmean`, which warns of a block without an element.
    return np.where(count > 0, np.where(there, blocks, 0).sum(axis=2) / np.maximum(count, 1), np.nan)
