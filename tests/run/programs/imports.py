"""Kernels from a package beside the script, and a file that is found relative to the working directory."""

import sys
from pathlib import Path

import numpy as np
from histogram.kernels import BINS, histogram, square

values = np.load(Path(sys.argv[1]))
counts = np.zeros(BINS, dtype=np.int32)
histogram[3, 32](values, -2.0, 2.0, counts)
square.forall(values.size)(values)
print("result:", *counts, values.sum())
