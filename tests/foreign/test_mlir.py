"""Programs of numba-cuda-mlir under `normlab run` where Numba is not installed; `pip install numba-cuda-mlir`."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("numba_cuda_mlir", reason='needs numba-cuda-mlir: pip install "normlab[foreign]"')

PROGRAM = """
import numpy as np
from numba_cuda_mlir import cuda, types

@cuda.jit(device=True)
def twice(x):
    return 2 * x

@cuda.jit("void(float32[:], float32[:], int32)", opt_level=3)
def declared(x, out, n):
    i = 4 * cuda.grid(1)
    if i < n:
        cuda.vector.store(out, i, cuda.vector.load(x, i, 4, alignment=16) + cuda.float32x4(1, 2, 3, 4), alignment=16)

@cuda.jit
def lazy(out, *rest):
    shared = cuda.shared.array(8, types.float32)
    i = cuda.threadIdx.x
    shared[i] = twice(rest[0][i])
    cuda.syncthreads()
    out[i] = shared[7 - i] + cuda.libdevice.sqrtf(rest[1][i])

x, out = cuda.to_device(np.arange(8, dtype=np.float32)), cuda.device_array(8, np.float32)
declared[1, 2](x, out, 8)
print(out.copy_to_host().tolist())
host = np.zeros(8, np.float32)
lazy[1, 8, cuda.stream(), 0, (1, 1, 1)](host, x, np.full(8, 9, np.float32))
print(host.tolist())
try:
    lazy.inspect_mlir()
except NotImplementedError as error:
    print(error)
"""


@pytest.mark.parametrize("options", [(), ("--sanitize",), ("--trace",)])
def test_a_program_runs_without_numba(tmp_path, options):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['numba'] = None  # as if it were not there\n")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    command = [sys.executable, "-m", "normlab.cli", "run", *options, str(tmp_path / "program.py")]
    variables = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[1.0, 3.0, 5.0, 7.0, 5.0, 7.0, 9.0, 11.0]",
        "[17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0]",
        "inspect_mlir: normlab run interprets kernels and compiles none, so it cannot know",
    ]
