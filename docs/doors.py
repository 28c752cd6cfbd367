"""Draw two pictures of the landing page, index.md, as learn.svg and see.svg beside this file: python docs/doors.py"""

from pathlib import Path

import matplotlib as mpl
import numpy as np

from normlab.engine import cuda, float32
from normlab.learn import lesson
from normlab.sim import trace
from normlab.stages import warp_sum_butterfly

HERE = Path(__file__).parent


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


def main() -> None:
    """Write both pictures."""
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "normlab"})
    tree = trace(sum_of_warp)[1, 32](np.ones(32, np.float32), np.zeros(32, np.float32)).draw_tree()
    tile = np.ones((32, 32), np.float32)
    banks = trace(transpose)[1, (32, 32)](tile, tile.copy()).draw_banks(lesson.line(transpose, "tile[i, j]"))
    for axes, name in ((tree, "learn"), (banks, "see")):
        axes.figure.savefig(HERE / f"{name}.svg", bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main()
