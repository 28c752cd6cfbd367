"""No CUDA at all."""

import numpy as np

print("result:", np.linalg.det(np.eye(3) * 2))
