"""FlashInfer's RMSNorm of x + residual, compiled by nvcc from the headers of its wheel, and called by ctypes.

FLASHINFER_INCLUDE names the wheel's folder flashinfer/data/include. Its Python package needs a dozen other packages,
among them a compiler of 92 MB, for what is one header. `python -m hardware.flashinfer_norm` compiles alone.
"""

import ctypes
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

SOURCE = """
#include <flashinfer/norm.cuh>
extern "C" int add_rms_norm(void* x, void* residual, void* weight, unsigned rows, unsigned columns, float eps) {
    using T = __nv_bfloat16;
    return flashinfer::norm::FusedAddRMSNorm<T>(
        static_cast<T*>(x), static_cast<T*>(residual), static_cast<T*>(weight), rows, columns, columns, columns, eps);
}
"""


@cache
def library() -> Any:
    """Return the compiled library; None if FLASHINFER_INCLUDE is not set."""
    include = os.environ.get("FLASHINFER_INCLUDE")
    if include is None:
        return None
    made = Path(tempfile.gettempdir(), "normlab_flashinfer.so")
    if not made.exists():
        source, half = made.with_suffix(".cu"), made.with_suffix(".half")
        source.write_text(SOURCE)
        flags = ["-O3", "-std=c++17", "-arch=sm_90a", "-shared", "-Xcompiler", "-fPIC", "-DENABLE_BF16", "-I", include]
        subprocess.run(["nvcc", *flags, "-o", str(half), str(source)], check=True)
        half.rename(made)
    found = ctypes.CDLL(str(made)).add_rms_norm
    found.argtypes = [*[ctypes.c_void_p] * 3, *[ctypes.c_uint] * 2, ctypes.c_float]
    return found


def add_rms_norm(x: Any, residual: Any, weight: Any, eps: float) -> None:
    """Replace the residual by x + residual, and x by its norm, on the default stream."""
    failed = library()(x.data_ptr(), residual.data_ptr(), weight.data_ptr(), *x.shape, eps)
    assert not failed, f"CUDA's error {failed}"


if __name__ == "__main__":
    library()
