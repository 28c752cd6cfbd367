"""Say what this machine has for normlab, what therefore works, and what to install for the rest.

Every question is asked on its own: what is missing or broken gives an answer, never an exception. PyTorch is not
imported, because that takes seconds. Called by `normlab doctor`.
"""

import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from normlab.measure.provenance import ask_nvidia_smi

NOTEBOOK_TOOLS = ("jupyterlab", "ipykernel", "nbformat")
CPU_ONLY = ", for CPUs only"


@dataclass(frozen=True)
class Finding:
    """One thing that normlab can use. found: what is here. instead: what to install or to know if it does not work."""

    what: str
    works: bool
    found: str
    instead: str = ""


@dataclass(frozen=True)
class Ability:
    """Something that a user wants to do. instead: what makes it work, if it does not work now."""

    what: str
    works: bool
    instead: str = ""


def examine() -> list[Finding]:
    """Return a finding for everything that normlab can use."""
    return [
        Finding("Python", True, f"{platform.python_version()}, {platform.system()} {platform.machine()}"),
        _asked("NumPy", lambda: _imported("NumPy", "numpy", "numpy")),
        _asked("Numba", lambda: _imported("Numba", "numba", "numba")),
        _asked("numba-cuda", _numba_cuda),
        _asked("CUDA compiler", _compiler),
        _asked("NVIDIA driver", _driver),
        _asked("GPU", _gpu),
        _asked("PyTorch", _torch),
        _asked("notebook tools", _notebooks),
    ]


def abilities(findings: list[Finding]) -> list[Ability]:
    """Return what a user can do with what was found."""
    by_name = {finding.what: finding for finding in findings}

    def ability(what: str, *needed: str) -> Ability:
        lacking = [by_name[name] for name in needed if not by_name[name].works]
        return Ability(what, not lacking, ", ".join(dict.fromkeys(finding.instead for finding in lacking)))

    base = ("NumPy", "Numba")
    torch = by_name["PyTorch"]
    if torch.found.endswith(CPU_ONLY):
        torch = replace(torch, works=False, instead="PyTorch for CUDA, from pytorch.org")
    by_name["PyTorch for CUDA"] = torch
    return [
        ability("simulator: compare, course, trace, run, explain", *base),
        ability("tutorials 1 to 14 in Jupyter", *base, "notebook tools"),
        ability("tutorials 15 to 17 in Jupyter", *base, "notebook tools", "PyTorch"),
        ability("PyTorch: normlab.nn, memory, train", *base, "PyTorch"),
        ability("PTX and registers without a GPU: explain --compile", *base, "numba-cuda", "CUDA compiler"),
        ability("kernels on the GPU", *base, "numba-cuda", "CUDA compiler", "NVIDIA driver", "GPU"),
        ability("speed: bench", *base, "numba-cuda", "CUDA compiler", "NVIDIA driver", "GPU", "PyTorch for CUDA"),
    ]


def _asked(what: str, question: Callable[[], Finding]) -> Finding:
    """Return the answer to a question. An exception counts as the answer "broken"."""
    try:
        return question()
    except Exception as error:
        told = str(error).strip().splitlines() or [type(error).__name__]
        return Finding(what, False, f"broken: {told[0]}", _how_to_install(what))


def _how_to_install(what: str) -> str:
    """Return the command that installs something, or its name if pip does not install it."""
    extras = {"CUDA compiler": "gpu", "PyTorch": "torch", "notebook tools": "tutorials"}
    if what in extras:
        return f'pip install "normlab[{extras[what]}]"'
    if what in ("NumPy", "Numba", "numba-cuda"):
        return f'pip install --force-reinstall --no-deps "{what.lower()}{_versions(what.lower()) or ""}"'
    return {"NVIDIA driver": "NVIDIA's driver", "GPU": "an NVIDIA GPU"}[what]


def _imported(what: str, package: str, module: str) -> Finding:
    """Import a package that normlab always needs, because an installed one may be broken."""
    if find_spec(module) is None:
        return Finding(what, False, "missing", "pip install normlab")
    __import__(module)
    return _in_range(what, package)


def _in_range(what: str, package: str) -> Finding:
    """Compare an installed version with the versions that normlab asks for, if these are known here."""
    here, wanted = version(package), _versions(package)
    if wanted is None or wanted.contains(here, prereleases=True):
        return Finding(what, True, here)
    return Finding(what, False, f"{here}, but normlab needs {wanted}", f'pip install "{package}{wanted}"')


def _versions(package: str) -> Any:
    """Return the versions of a package that normlab asks for, a SpecifierSet; None: not known here."""
    try:
        from packaging.requirements import Requirement

        asked = [Requirement(line) for line in requires("normlab") or ()]
        return next(one for one in asked if one.name == package and "extra" not in str(one.marker)).specifier
    except (ImportError, PackageNotFoundError, StopIteration):
        return None


def _numba_cuda() -> Finding:
    if platform.system() == "Darwin":
        return Finding("numba-cuda", False, "not for macOS", "CUDA needs Linux or Windows; here, use the simulator")
    if find_spec("numba_cuda") is None:
        return Finding("numba-cuda", False, "missing", "pip install normlab")
    return _in_range("numba-cuda", "numba-cuda")


def _compiler() -> Finding:
    from normlab.engine.compile.offline import missing_libraries

    missing = missing_libraries()
    if missing:
        return Finding("CUDA compiler", False, f"missing: {', '.join(missing)}", _how_to_install("CUDA compiler"))
    return Finding("CUDA compiler", True, "NVVM, nvJitLink, NVRTC")


def _driver() -> Finding:
    found = ask_nvidia_smi("driver_version")
    if found is None:
        return Finding("NVIDIA driver", False, "none", "NVIDIA's driver")
    return Finding("NVIDIA driver", True, found)


def _gpu() -> Finding:
    from normlab.engine import gpu_available

    named = ask_nvidia_smi("name,memory.total")
    if gpu_available():
        return Finding("GPU", True, f"{named} MiB" if named else "Numba finds one")
    if named:
        return Finding("GPU", False, f"{named} MiB, but Numba cannot use it", _how_to_install("CUDA compiler"))
    return Finding("GPU", False, "none; kernels run in normlab's simulator", "an NVIDIA GPU")


def _torch() -> Finding:
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return Finding("PyTorch", False, "missing", _how_to_install("PyTorch"))
    built = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    cpu_only = "cuda: Optional[str] = None" in built or "cuda = None" in built
    return Finding("PyTorch", True, f"{version('torch')}{CPU_ONLY if cpu_only else ''}")


def _notebooks() -> Finding:
    missing = [name for name in NOTEBOOK_TOOLS if find_spec(name) is None]
    if missing:
        return Finding("notebook tools", False, f"missing: {', '.join(missing)}", _how_to_install("notebook tools"))
    return Finding("notebook tools", True, f"JupyterLab {version('jupyterlab')}")
