"""What a record says about where it was made, and how a long command is run without losing what it said."""

import os
import platform
import signal
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version


def provenance() -> dict[str, str]:
    """Date, command, GPU, driver and the versions of all that took part."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        gpus = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        gpus = "none"
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
        "gpu, driver": gpus,
        "python": platform.python_version(),
        **{package: _version(package) for package in ("numba", "numba-cuda", "numpy", "normlab")},
    }


def gpus() -> list[str]:
    """What CUDA_VISIBLE_DEVICES may be, to have one GPU of those that this process has."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return chosen.split(",")
    listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=True).stdout
    return [str(number) for number, _ in enumerate(listed.splitlines())]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        import normlab  # not installed, but on the path

        return normlab.__version__ if package == "normlab" else "not installed"


def tool_version(tool: str) -> str:
    """The last line of what `tool --version` says."""
    return subprocess.run([tool, "--version"], capture_output=True, text=True).stdout.strip().rpartition("\n")[2]


def run(command: list[str], seconds: float) -> tuple[int | None, str]:
    """Run a command; return its exit status, None if it took longer than `seconds`, and all that it printed.

    The command is killed with every process that it has started.
    """
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True
    )
    try:
        said = process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]
    return process.returncode, said
