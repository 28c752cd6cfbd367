"""Prepare the fork server, which imports this module: every solution's process is a fork of the server.

The module imports everything that such a process needs, and hides the imported objects from the garbage collector. A
garbage collection in a forked process would otherwise write to these objects' memory, and the system would have to copy
it. That took 50 of the 70 ms of a process.
"""

import gc

import numpy as np

from normlab.course import worker  # noqa: F401
from normlab.engine import cuda
from normlab.engine.compile.front_end import refusal


@cuda.jit
def _first(x):
    """Give Numba something to compile: its first kernel takes 0.8 s longer than the next ones."""
    x[cuda.grid(1)] = 0


refusal(_first, ((np.dtype(np.float32), 1),))
np.unique([0])  # imports numpy.ma, which takes 15 ms: the counting of requests calls it
gc.freeze()
