"""Draw two pictures of the landing page, index.md, as learn.svg and see.svg beside this file: python docs/doors.py

A card shows them small, so each has few marks and large letters.
"""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from normlab.engine import cuda, float32
from normlab.learn import lesson
from normlab.sim import trace
from normlab.stages import warp_sum_butterfly

HERE = Path(__file__).parent
PADDED = 33  # columns of a tile whose columns lie in 32 banks


@cuda.jit
def sum_of_warp(x, total):
    """Add up 32 values in five shuffles."""
    total[cuda.threadIdx.x] = warp_sum_butterfly(x[cuda.threadIdx.x])


@cuda.jit
def transpose(x, y):
    """Turn a tile round, with bank conflicts."""
    tile = cuda.shared.array((32, 32), float32)
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    tile[j, i] = x[j, i]
    cuda.syncthreads()  # the whole tile is there before its columns are read
    y[j, i] = tile[i, j]


@cuda.jit
def transpose_padded(x, y):
    """Turn a tile round, without bank conflicts."""
    padded = cuda.shared.array((32, PADDED), float32)
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    padded[j, i] = x[j, i]
    cuda.syncthreads()
    y[j, i] = padded[i, j]


def bare(axes: Any, title: str, across: str, down: str) -> None:
    """Leave the marks, and say in large letters what they are."""
    for part in (axes.get_legend(), *axes.texts):
        if part is not None:
            part.remove()
    for side in ("left", "center", "right"):
        axes.set_title("", loc=side)
    axes.set_title(title, fontsize=15)
    axes.set_xlabel(across, fontsize=14)
    axes.set_ylabel(down, fontsize=14)
    axes.tick_params(labelsize=12)
    axes.grid(False)


def write(figure: Figure, name: str) -> None:
    """Write a figure on white paper, the same each time."""
    figure.savefig(HERE / f"{name}.svg", facecolor="white", metadata={"Date": None})


def shuffles() -> None:
    """Draw how eight lanes add up their values: the last three of a warp's five shuffles."""
    figure = Figure(figsize=(7.2, 3.9), layout="constrained")
    counted = trace(sum_of_warp)[1, 32](np.ones(32, np.float32), np.zeros(32, np.float32))
    axes = counted.draw_tree(range(2, 6), 8, figure.subplots())
    bare(axes, "Eight lanes, three shuffles, one sum in each", "lane", "shuffle")
    write(figure, "learn")


def banks() -> None:
    """Draw which bank each lane reads from, in a tile with and without padding."""
    figure = Figure(figsize=(7.2, 3.9), layout="constrained")
    tile = np.ones((32, 32), np.float32)
    kernels = ((transpose, "tile[i, j]", "32 x 32: 32 turns"), (transpose_padded, "padded[i, j]", "32 x 33: one turn"))
    for axes, (kernel, line, title) in zip(figure.subplots(1, 2, sharey=True), kernels, strict=True):
        trace(kernel)[1, (32, 32)](tile, tile.copy()).draw_banks(lesson.line(kernel, line), ax=axes)
        for marks in axes.collections:
            marks.set_sizes([16])
        bare(axes, title, "bank", "lane" if kernel is transpose else "")
    write(figure, "see")


if __name__ == "__main__":
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "normlab"}):
        shuffles()
        banks()
