"""The machine that a benchmark runs on: is it fit for one, and what does a record say about it?"""

import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from normlab import __version__, engine
from normlab.kernels import roofline

PACKAGES = ("torch", "triton", "numba", "numba-cuda", "numpy", "liger-kernel", "quack-kernels", "apex")
INSTEAD = "Without one, `normlab trace {}` shows what each kernel asks of memory, line by line."


class NotFitError(Exception):
    """This machine cannot run a benchmark; the message says what is missing."""


def require_gpu(ladder: str = "forward") -> None:
    """Raise NotFitError unless there are a GPU and a PyTorch that can use it; `ladder`: what `trace` shows instead."""
    if not engine.gpu_available():
        raise NotFitError(f"needs an NVIDIA GPU and its driver; none was found here. {INSTEAD.format(ladder)}")
    try:
        import torch
    except ImportError as error:
        raise NotFitError(
            f"needs PyTorch, for arrays on the GPU and as a peer ({error}); pip install 'normlab[torch]' gets it"
        ) from None
    if not torch.cuda.is_available():
        raise NotFitError(f"needs a PyTorch with CUDA, but this one ({torch.__version__}) finds no GPU")


def provenance() -> dict[str, Any]:
    """Date, command, GPU, driver and versions: how every record begins."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["normlab", *sys.argv[1:]]),
        **_gpu(),
        "python": platform.python_version(),
        "normlab": __version__,
        **{package: _version(package) for package in PACKAGES},
    }


def _gpu() -> dict[str, str]:
    gpu, _, driver = (_asked("name,driver_version") or "unknown, unknown").partition(", ")
    return {"gpu": gpu, "driver": driver}


def _asked(what: str) -> str | None:
    """What nvidia-smi answers about the first GPU; None where there is no nvidia-smi."""
    query = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError):
        return None


def peak() -> float | None:
    """Float32 operations a second at the highest clock, without tensor cores; None where that is not known."""
    import torch

    megahertz = _asked("clocks.max.sm") or ""
    if not megahertz.strip().isdigit():
        return None
    found = torch.cuda.get_device_properties(0)
    try:
        return roofline.peak(found.multi_processor_count, 1e6 * int(megahertz), (found.major, found.minor))
    except ValueError:
        return None


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
