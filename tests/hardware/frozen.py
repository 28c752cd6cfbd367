"""Freeze what a rewriting must not move: python -m hardware.frozen write|compare FILE [PROCESSES]

`write` stores the result bits of every ladder step in the simulator, and what the assembler says of every plan that the
tests compile offline; with NORMLAB_ALL_PLANS=1 these are all plans. `compare` makes both again. It exits with 1 where a
bit differs, or where a kernel takes over two registers more or less, other shared memory, spills, or another number of
float64 instructions. FILE is JSON, for one machine and one set of compiler versions: it is not committed.

From the repository's root: PYTHONPATH=.:tests OMP_NUM_THREADS=1 python -m hardware.frozen write /tmp/frozen.json
"""

import hashlib
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import devices
import numpy as np
import pytest
from examine import backward, forward, keep, statistics
from family import test_ptx as family_kernels
from family.examples import example, few_blocks
from kernels import test_plans, test_ptx
from kernels.test_sgemm_ptx import TYPES as PRODUCT_TYPES
from kernels.test_sgemm_ptx import launched
from products import operands, run

from hardware.all_steps import draw
from normlab.engine import compile_ptx, resources, using
from normlab.engine.compile import offline
from normlab.kernels import LADDERS

REGISTERS = 2  # the difference that counts as none
DTYPES = ("float32", "bfloat16", "float16", "float64")
NORMS = [
    *product([(3, 1), (5, 33), (40, 96), (9, 770)], DTYPES, (False, True), [0]),  # 0: all steps
    *product([(20, 384), (4, 4096), (3, 5120), (2, 16384)], DTYPES[:2], (False, True), [2]),  # the last two
    ((2, 20480), "bfloat16", True, 1),
    ((2, 40000), "float32", False, 1),
    ((1, 65540), "bfloat16", False, 1),
    ((1, 65536), "float32", True, 1),
    ((1, 262148), "float32", False, 1),  # cut into pieces: half a minute
]
FAMILY = [
    *product(("batch", "instance", "group"), [(2, 4, 37), (3, 8, 300), (2, 40, 53)], (False, True), DTYPES[:2]),
    ("batch", (2, 128, 11), True, "float32"),
    ("batch", (34, 1, 2), False, "float32"),
]
PRODUCTS = [(7, 33, 17), (33, 68, 41)]


def bits(results: tuple) -> str:
    """Return a hash of arrays: of their dtypes and bytes."""
    found = hashlib.sha256()
    for one in results:
        found.update(b"None" if one is None else one.dtype.name.encode() + np.ascontiguousarray(one).tobytes())
    return found.hexdigest()[:16]


def norm(rows: tuple[int, int], dtype: str, rms: bool, last: int) -> dict[str, Any]:
    """Return the bits of a norm by the last steps of both ladders, on every path of the backward."""
    case, found = draw(*rows, dtype, rms), {}
    output, mean, invvar = statistics(case)
    name = f"{rows[0]}x{rows[1]} {dtype} {'rms' if rms else 'layer'}"
    for step in LADDERS["forward"][-last:]:
        found[f"forward {step.name} {name}"] = bits(forward(case, step))
    for step, path in product(LADDERS["backward"][-last:], (False, True, "exact")):
        kept = keep(case, mean, invvar) if path == "exact" else None
        gradients = backward(case, step, output if path else case.x, mean, invvar, path, kept)
        found[f"backward {step.name} {name} {path}"] = bits(gradients)
    return found


def of_family(kind: str, shape: tuple, last: bool, dtype: str) -> dict[str, Any]:
    """Return the bits of a norm of the family; one that blocks can share in one kernel runs so, too."""
    one, found = example(kind, shape, dtype, groups=2, last=last), {}
    with pytest.MonkeyPatch.context() as patch:
        for blocks in ("", " together"):
            if blocks:
                few_blocks(patch)
            results = one.forward()
            found[f"family {kind} {shape} {last} {dtype}{blocks}"] = bits((*results, *one.backward(*results[1:])))
    return found


def products(m: int, n: int, k: int) -> dict[str, Any]:
    """Return the bits of a product by every step of its ladder."""
    return {
        f"sgemm {step.name} {m}x{n}x{k}": bits((run(step, operands(m, n, k, 2, 0.5)),)) for step in LADDERS["sgemm"]
    }


@cache
def assembled(kernel: Any, types: tuple, capability: tuple[int, int] = (9, 0)) -> dict[str, int]:
    """Return what a kernel takes, and how often its PTX says `.f64`."""
    ptx = compile_ptx(kernel, types, capability)
    return {**resources(kernel, types, capability)._asdict(), "f64": ptx.count(".f64")}


def plan(case: tuple) -> dict[str, Any]:
    """Return what the kernels of a fast step's plan take, at every number of rows that the tests take."""
    name, n2, form, capability, rows = case
    found = {}
    step = next(step for step in test_plans.STEPS if step.name == name)
    for n1 in rows:
        for number, one in enumerate(test_plans.launches(step, n1, n2, form, devices.of(capability))):
            taken = assembled(one.work.kernel, one.types, capability)
            shared = taken["shared_bytes"] + one.work.shared_bytes
            found[f"{test_plans.named(case)} n1={n1} {number}"] = {**taken, "shared_bytes": shared}
    return found


def plain_kernels(*form: Any) -> dict[str, Any]:
    """Return what the slower steps' kernels and the exact mode's take."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_ptx, "compile_ptx", assembled)
        return {f"{number} {name} {form}": taken for number, (name, taken) in enumerate(test_ptx.compiled(*form))}


def other_kernels(t: Any, v: Any) -> dict[str, Any]:
    """Return what the family's kernels take and, beside those of float32, the products'."""
    listed = [(kernel.py_func.__name__, kernel, types) for kernel, types in family_kernels.kernels(t, v)]
    if t is np.float32:
        listed += [(f"sgemm {step.name}", launched(step, 128)[0], PRODUCT_TYPES) for step in LADDERS["sgemm"]]
    return {f"{number} {name} {t} {v}": assembled(kernel, types) for number, (name, kernel, types) in enumerate(listed)}


def jobs() -> list[tuple]:
    """Return (function, arguments) of everything; the long ones first."""
    cases = test_plans.everything() if test_plans.FULL else test_plans.sample()
    found = [(plan, (case,)) for case in cases] + [(plain_kernels, form) for form in test_ptx.FORMS]
    found += [(other_kernels, (np.float32, np.float32)), (other_kernels, (test_ptx.BFLOAT16, np.float32))]
    found += [(norm, one) for one in reversed(NORMS)] + [(of_family, one) for one in FAMILY]
    return found + [(products, size) for size in PRODUCTS]


def do(job: tuple) -> dict[str, Any]:
    """Run one of `jobs`."""
    function, arguments = job
    with using("simulator"):
        return function(*arguments)


def begin() -> None:
    """Let a process keep a kernel's intermediate code, of which its PTX and its cubin are made."""
    offline._intermediate_codes = cache(offline._intermediate_codes)


def freeze(processes: int) -> dict[str, Any]:
    """Return all bits and all kernels' numbers by name, of so many processes."""
    with ProcessPoolExecutor(processes, initializer=begin) as pool:
        return {name: value for found in pool.map(do, jobs()) for name, value in found.items()}


def difference(before: Any, after: Any) -> str | None:
    """Return what has moved, in words, or None."""
    if before is None or after is None or isinstance(before, str):
        return None if before == after else f"{before} is now {after}"
    moved = [key for key in before if key != "registers" and before[key] != after[key]]
    if abs(before["registers"] - after["registers"]) > REGISTERS:
        moved.append("registers")
    moved += [key for key in ("spill_stores", "spill_loads") if after[key] and key not in moved]
    return "; ".join(f"{key}: {before[key]} is now {after[key]}" for key in moved) or None


def main(what: str, file: str, processes: str = "2") -> int:
    """Write the baseline, or compare with it; return the number of differences."""
    now = freeze(int(processes))
    if what == "write":
        Path(file).write_text(json.dumps(now, indent=0, sort_keys=True))
        print(f"{len(now)} entries written")
        return 0
    before = json.loads(Path(file).read_text())
    found = {name: difference(before.get(name), now.get(name)) for name in sorted({*before, *now})}
    moved = {name: text for name, text in found.items() if text}
    print(*(f"{name}: {text}" for name, text in moved.items()), sep="\n")
    print(f"{len(moved)} of {len(found)} entries have moved")
    return len(moved)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4) or sys.argv[1] not in ("write", "compare"):
        sys.exit(__doc__)
    sys.exit(bool(main(*sys.argv[1:])))
