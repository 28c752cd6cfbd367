"""Run numba-cuda's own test suite on normlab's simulator, or on Numba's, and count: a command, not a test.

    python tests/foreign/suite.py [--cudasim] [--mlir FOLDER] [--out FILE] [--jobs 2] [MODULE ...]

The installed numba-cuda brings its tests along; nothing of them is in this repository. With --mlir, the tests are
numba-cuda-mlir's own, which are in the folder `tests` of its repository; Numba is not installed then. Every module runs
in a process of its own, with a time limit, and `suite_plugin` notes each test's outcome. A test with subtests passes if
all of them pass. `pip install filecheck cffi` lets all modules be imported.

Not counted: modules and tests about what a compiler makes or about a real driver (`NOT_OURS`), and tests that skip.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "numba.cuda.tests"
MODULE_SECONDS = 900
REFUSALS = (  # what normlab run says of a test that asks for compiled code or a real driver
    *("compiles none, so it cannot know", "nothing compiles them", "cuda.declare_device is not in normlab run"),
    *("cuda.jit(link=", "is not in normlab run: it needs a GPU's driver", "NVIDIA driver library"),
    *("no attribute '_codelibrary'", "no attribute '_type_annotation'", "no attribute 'create_module_ptx'"),
    *("no attribute '_compile_for_args'", "no attribute 'compile_device'", "no attribute 'get_ipc_handle'"),
    *("get_ipc_handle: an array", "got an unexpected keyword argument 'abi_info'"),
)
NOT_OURS = {
    "core.test_itanium_mangler": "names of compiled functions",
    "cudadrv.test_emm_plugins": "plugins below the driver",
    "cudadrv.test_init": "errors of a driver that does not start",
    "cudadrv.test_inline_ptx": "PTX",
    "cudadrv.test_linkable_code": "linker",
    "cudadrv.test_linker": "linker",
    "cudadrv.test_managed_alloc": "asks for a tenth of the GPU's 150 GB, in host memory here",
    "cudadrv.test_module_callbacks": "modules of compiled code",
    "cudadrv.test_nvjitlink": "linker",
    "cudadrv.test_nvrtc": "compiler",
    "cudadrv.test_nvvm_driver": "compiler",
    "cudapy.test_array_alignment": "alignment in LLVM's IR",
    "cudapy.test_caching": "files of compiled code",
    "cudapy.test_compiler": "compiler",
    "cudapy.test_debug": "dumps of the compiler",
    "cudapy.test_debuginfo": "debug information of compiled code",
    "cudapy.test_debuginfo_types": "debug information of compiled code",
    "cudapy.test_fastmath": "PTX",
    "cudapy.test_inline": "LLVM's IR",
    "cudapy.test_inspect": "compiled code",
    "cudapy.test_ipc": "memory of another process on a GPU",
    "cudapy.test_libdevice": "PTX of each libdevice function",
    "cudapy.test_lineinfo": "line information of compiled code",
    "cudapy.test_optimization": "LLVM's IR",
    "nocuda.test_library_lookup": "the toolkit's files",
    "nocuda.test_nvvm": "compiler",
    "nrt.test_nrt": "memory that compiled kernels allocate",
    "nrt.test_nrt_refct": "memory that compiled kernels allocate",
}
MLIR_NOT_OURS = {
    "test_annotations_as_signatures": "what a compiler makes of annotations",
    "test_caching": "files of compiled code",
    "test_compiler_public_api": "compiler",
    "test_context_aware_dmm": "the compiler's data models",
    "test_cuda_gdb": "debugger",
    "test_debuginfo": "debug information of compiled code",
    "test_descriptor_launch_config": "the compiler's launcher",
    "test_dump_nvvm": "dumps of the compiler",
    "test_extending_lower_cast": "extensions of the compiler",
    "test_free_threading": "a Python without a lock",
    "test_help_message": "help of the compiler",
    "test_ice": "errors of the compiler",
    "test_inline_ptx": "PTX",
    "test_inspect_llvm": "LLVM's IR",
    "test_lineinfo": "line information of compiled code",
    "test_lto_defaults": "linker",
    "test_numba_cuda_mlir_extending": "extensions of the compiler",
    "test_post_inline_planners": "the compiler's planners",
    "test_profile_compile_time": "time of the compiler",
    "test_symbol_isolation": "symbols of the compiler's libraries",
    "test_to_mlir_type_extension": "extensions of the compiler",
}
RANK = ("passed", "skipped", "failed", "error")  # a test is as bad as its worst subtest


def modules(folder: Path | None = None) -> list[str]:
    """Return the names of the suite's modules below PACKAGE, or of the tests in a folder."""
    if folder is not None:
        return sorted(path.stem for path in folder.glob("test_*.py"))
    spec = find_spec(PACKAGE)
    assert spec is not None
    root = Path(next(iter(spec.submodule_search_locations or ())))
    found = (path.relative_to(root).with_suffix("") for path in root.rglob("test_*.py"))
    return sorted(".".join(path.parts) for path in found if path.parts[0] != "benchmarks")


def environment(folder: Path, outcomes: Path, cudasim: bool) -> dict[str, str]:
    """Return the variables for one run; a Python that a test starts simulates its kernels, too."""
    root = Path(__file__).parents[2]
    if not cudasim:
        (folder / "sitecustomize.py").write_text("from foreign import suite_child\n\nsuite_child.simulate_here()\n")
    paths = [str(folder), str(root), str(root / "tests"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "NUMBA_ENABLE_CUDASIM": str(int(cudasim)),
        "NORMLAB_OUTCOMES": str(outcomes),
        "OMP_NUM_THREADS": "1",
    }


def run(module: str, folder: Path, variables: dict[str, str], tests: Path | None) -> None:
    """Run one module, of PACKAGE or of a folder of tests, and note it as an error if it does not end."""
    options = ("-p", "foreign.suite_plugin", "-p", "no:cacheprovider", "-q", "--tb=short", "-c", "pytest.ini")
    target = ["--pyargs", f"{PACKAGE}.{module}"] if tests is None else ["--noconftest", str(tests / f"{module}.py")]
    command = [sys.executable, "-m", "pytest", *options, "--rootdir", ".", *target]
    with open(folder / f"{module}.log", "w") as log:
        try:
            subprocess.run(
                command,
                cwd=folder,
                env=variables | {"NORMLAB_MODULE": module},
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=MODULE_SECONDS,
            )
        except subprocess.TimeoutExpired:
            line = {"module": module, "test": "", "outcome": "error", "raised": f"longer than {MODULE_SECONDS} s"}
            with open(variables["NORMLAB_OUTCOMES"], "a") as file:
                file.write(json.dumps(line) + "\n")


def merged(outcomes: Path) -> list[dict]:
    """Return one outcome for each test."""
    worst: dict[tuple, dict] = {}
    for line in outcomes.read_text().splitlines():
        told = json.loads(line)
        if told["raised"] == "Unexpected success":  # Numba's own compiler fails there, and the test expects that
            told["outcome"] = "passed"
        key = told["module"], told["test"]
        if key not in worst or RANK.index(told["outcome"]) > RANK.index(worst[key]["outcome"]):
            worst[key] = told
    return list(worst.values())


def counted(tests: list[dict]) -> Counter:
    """Return how many tests passed and failed, of those that are ours to pass, and how many are not."""
    count: Counter = Counter()
    for test in tests:
        refused = any(words in test["raised"] for words in REFUSALS)
        ours = test["module"] not in NOT_OURS | MLIR_NOT_OURS and not refused and test["outcome"] != "skipped"
        count["not ours" if not ours else "passed" if test["outcome"] == "passed" else "failed"] += 1
    return count


def main() -> None:
    """Run the suite, print what failed, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", help="such as cudapy.test_lang; by default all that are ours")
    parser.add_argument("--cudasim", action="store_true", help="use Numba's own simulator")
    parser.add_argument("--mlir", type=Path, default=None, help="the folder of numba-cuda-mlir's tests, to run these")
    parser.add_argument("--out", type=Path, default=None, help="a file for the outcomes, one JSON object a line")
    parser.add_argument("--jobs", type=int, default=2)
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="numba-suite-"))
    (folder / "pytest.ini").write_text("[pytest]\nconsider_namespace_packages = true\n")
    outcomes = (chosen.out or folder / "outcomes.jsonl").resolve()
    outcomes.write_text("")
    variables = environment(folder, outcomes, chosen.cudasim)
    tests_in = chosen.mlir and chosen.mlir.resolve()
    names = chosen.modules or [name for name in modules(tests_in) if name not in NOT_OURS | MLIR_NOT_OURS]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        list(pool.map(lambda name: run(name, folder, variables, tests_in), names))
    tests = merged(outcomes)
    for test in tests:
        if test["outcome"] in ("failed", "error"):
            print(f"{test['module']}::{test['test']}: {test['raised']}")
    print(f"logs: {folder}", dict(counted(tests)))


if __name__ == "__main__":
    main()
