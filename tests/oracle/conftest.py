"""The tests share `numpy_kernels` and `inputs`; under importlib mode pytest leaves their folder out of the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
