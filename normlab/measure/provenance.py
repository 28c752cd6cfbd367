"""Describe the machine that a measurement runs on: how every record begins."""

import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from normlab import __version__

PACKAGES = ("torch", "triton", "numba", "numba-cuda", "numpy", "liger-kernel", "quack-kernels", "apex")


def provenance() -> dict[str, Any]:
    """Return date, command, GPU, driver and versions, by name."""
    gpu, _, driver = (ask_nvidia_smi("name,driver_version") or "unknown, unknown").partition(", ")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["normlab", *sys.argv[1:]]),
        "gpu": gpu,
        "driver": driver,
        "python": platform.python_version(),
        "normlab": __version__,
        **{package: _version(package) for package in PACKAGES},
    }


def ask_nvidia_smi(query: str) -> str | None:
    """Return what nvidia-smi answers about the first GPU; None where there is no nvidia-smi or no GPU."""
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return None


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
