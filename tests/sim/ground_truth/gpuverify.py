"""Small kernels after the patterns of GPUVerify's own tests (Betts, Chong, Donaldson and others, OOPSLA 2012).

GPUVerify proves or refutes a kernel for all inputs. Its tests say which kernels it must verify and which it must not.
A name is the original's folder.

What differs from the original:

- A sanitizer runs a kernel with one input. Where the original leaves an input open, a pattern here has one that shows
  the bug. Sizes are smaller.
- Left out: tests of annotations, assertions, loop invariants, C's pointers, casts and structures, and of OpenCL's
  barriers with a flag for one memory only: `syncthreads` orders both.
- Stores of one value by several threads are a race that is told as benign; GPUVerify verifies them.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .texts import kernel_of

SIZE = 1024  # elements of each array
HEAD = "    t = cuda.threadIdx.x\n    i = cuda.grid(1)\n"
RACE, DIVERGENCE, BOUNDS, NEGATIVE = "race", "barrier-divergence", "out-of-bounds", "negative-index"


@dataclass(frozen=True)
class Pattern:
    """A kernel of two arrays in a configuration, and what GPUVerify finds wrong with it; None if it verifies it.

    benign: a race of equal values is told besides.
    """

    name: str
    configuration: tuple[Any, Any]
    body: str
    wrong: str | None = None
    benign: bool = False

    @cached_property
    def kernel(self) -> Any:
        """The kernel."""
        lines = "".join(f"    {line}\n" for line in self.body.strip("\n").splitlines())
        return kernel_of(f"<gpuverify {self.name}>", f"def kernel(a, b):\n{HEAD}{lines}")

    @staticmethod
    def arguments() -> tuple[np.ndarray, np.ndarray]:
        """Two arrays, of zeros and of ones."""
        return np.zeros(SIZE, np.int32), np.ones(SIZE, np.int32)


SHARED = "s = cuda.shared.array({}, int32)\n"
SHIFTED = "v = a[i + 1]\n{}\na[i] = v"
IN_BLOCK = """
if t != 0:
    a[t] = t
for turn in range(10):
    if turn == 1:
        a[0] = t
"""
STRIDES = """
k = t
while k < {}:
    a[cuda.blockIdx.x * 200 + k] = k
    k += cuda.blockDim.x
"""
SCAN = """
lane = t % 32
for step in (1, 2, 4, 8, 16):
    v = a[t - step] if lane >= step else 0
    cuda.syncwarp()
    a[t] += v
    cuda.syncwarp()
"""
CLOSURE = (
    SHARED.format("(8, 8)")
    + """
y = cuda.threadIdx.y
s[y, t] = (3 * y + t) % 4
cuda.syncthreads()
for k in range(8):
    if s[y, t] == 0:
        if s[y, k] != 0 and s[k, t] != 0:
            s[y, t] = k + 2
    {}
a[y * 8 + t] = s[y, t]
"""
)
TRANSPOSED = (
    SHARED.format("(4, 4)")
    + """
s[cuda.threadIdx.y, t] = b[4 * cuda.threadIdx.y + t]
{}
a[4 * cuda.threadIdx.y + t] = s[t, cuda.threadIdx.y]
"""
)
HISTOGRAM = (
    SHARED.format("(16 * 16,)")
    + """
for bin in range(16):
    s[t + bin * 16] = 0
{}
sum = 0
for k in range(16):
    sum += s[t * 16 + k]
a[i] = sum
"""
)

PATTERNS = [
    # --- verified ----------------------------------------------------------------------------------------------------
    Pattern("atomics/add_one", (1, 32), "j = cuda.atomic.add(b, 0, 1)\na[j] = t"),
    Pattern(
        "atomics/definitions",
        (1, 64),
        "cuda.atomic.add(a, 0, 10)\ncuda.atomic.max(a, 0, 10)\n"
        "cuda.atomic.exch(a, 0, 10)\ncuda.atomic.cas(a, 0, 10, 11)",
    ),
    Pattern("atomics/counter", (4, 32), "cuda.atomic.add(a, 0, 1)"),
    Pattern("atomics/histo", (4, 32), "cuda.atomic.add(a, b[i] + t % 4, 1)"),
    Pattern("barrierconditionalkernelparam", (4, 64), "if b[0] == 1:\n    cuda.syncthreads()"),
    Pattern("basicbarrier", (4, 64), "cuda.syncthreads()"),
    Pattern("barrier_intervals/test1", (4, 16), "a[i] = t\ncuda.syncthreads()\na[i] = t\ncuda.syncthreads()\na[i] = t"),
    Pattern("cooperative_groups/pass/block_barrier", (1, 32), SHIFTED.format("cuda.syncthreads()")),
    Pattern("cooperative_groups/pass/grid_barrier", (2, 32), SHIFTED.format("cuda.cg.this_grid().sync()")),
    Pattern(
        "cooperative_groups/pass/multiple_barriers",
        (2, 32),
        SHIFTED.format("cuda.cg.this_grid().sync()")
        + "\ncuda.cg.this_grid().sync()\nif cuda.blockIdx.x == 0:\n    v = a[i + 1]\n    cuda.syncthreads()\n"
        "    if t != 31:\n        a[i] = v",
    ),
    Pattern("ctimesgid", (2, 32), "for k in range(8):\n    a[k + i * 8] = i"),
    Pattern("ctimeslid", (2, 32), SHARED.format("(256,)") + "for k in range(8):\n    s[k + t * 8] = t"),
    Pattern("local2darrayaccess", (4, 10), SHARED.format("(10, 10)") + "s[cuda.threadIdx.y, t] = 2"),
    Pattern(
        "localarrayaccess",
        (4, 10),
        SHARED.format("(11,)") + "s[t] = 2\nif t == 0:\n    s[10] = 1\ncuda.syncthreads()\na[i] = s[t + 1]",
    ),
    Pattern("noraceduetoreturn", (1, 64), "if t != 0:\n    return\na[4] = 26"),
    Pattern("pointertests/test2", (1, 64), "q = a\nq[t] = 0"),
    Pattern("reduced_strength_blockwise", (2, 64), STRIDES.format(200)),
    Pattern("reduced_strength_with_requires", (1, 64), "k = t\nwhile k < 640:\n    a[k] *= 2\n    k += 64"),
    Pattern("scope", (4, 16), HISTOGRAM.format("cuda.syncthreads()")),
    Pattern("ternarytest", (1, 64), "a[1 if t == 0 else 2 * t] = 2"),
    Pattern("test_for_get_group_id", (2, 64), "if cuda.blockIdx.x == 0:\n    a[t] = 42"),
    Pattern("threadfence", (2, 32), "cuda.threadfence()"),
    Pattern("transitiveclosure", (1, (8, 8)), CLOSURE.format("cuda.syncthreads()")),
    Pattern("transitiveclosure without its barrier", (1, (8, 8)), CLOSURE.format("pass"), RACE),
    Pattern("warpsize", (2, 32), "a[i] = cuda.warpsize"),
    Pattern("warpsync/2d", (1, (4, 4)), TRANSPOSED.format("cuda.syncthreads()")),
    Pattern("warpsync/intragroup_scan", (1, 64), SCAN),
    Pattern("benign_race_tests/pass/writezero", (1, 64), "a[0] = 0", benign=True),
    Pattern("benign_race_tests/pass/writeinloop", (1, 64), "for k in range(10):\n    a[k] = k", benign=True),
    Pattern("benign_race_tests/pass/writetiddiv64", (1, 64), "a[0] = t // 64", benign=True),
    Pattern("benign_race_tests/pass/writewritearray", (1, 64), "a[0] = b[1]", benign=True),
    # --- refuted -----------------------------------------------------------------------------------------------------
    Pattern("atomics/add_tid", (1, 2), "j = cuda.atomic.add(b, 0, t)\na[j] = t", RACE),
    Pattern("atomics/add_zero", (1, 2), "j = cuda.atomic.add(b, 0, 0)\na[j] = t", RACE),
    Pattern("atomics/atomic_read_race", (1, 64), "v = a[t]\ncuda.atomic.add(a, 0, 1)\nb[t] = v", RACE),
    Pattern("atomics/displaced", (1, 64), "a[t + 1] = 42\ncuda.atomic.add(a, 1, 1)", RACE),
    Pattern("atomics/forloop", (1, 32), "v = 0\nfor k in range(4):\n    v = cuda.atomic.add(b, k, v)\nb[t] = v", RACE),
    Pattern(
        "atomics/bad_local_counters",
        (4, 32),
        SHARED.format("(1,)") + "if t == 0:\n    s[0] = 0\ncuda.syncthreads()\nj = cuda.atomic.add(s, 0, 1)\na[j] = i",
        RACE,
    ),
    Pattern("array_bounds_tests/simple_array_fail_var", (8, 8), SHARED.format("(20,)") + "s[i] = i", BOUNDS),
    Pattern(
        "array_bounds_tests/multi_dim_array_fail_upper", (2, 10), SHARED.format("(10, 10)") + "s[i, t] = 1", BOUNDS
    ),
    Pattern(
        "array_bounds_tests/negative_index", (1, 10), SHARED.format("(10, 10)") + "s[t - 1, t] = 1", "negative-index"
    ),
    Pattern(
        "barrier_intervals/test2",
        (2, 16),
        "a[i] = t\nif t == 0:\n    cuda.syncthreads()\na[i] = t\ncuda.syncthreads()",
        DIVERGENCE,
    ),
    Pattern("benign_race_tests/fail/writeafterread_addition", (1, 64), "v = a[0]\na[0] = v + 1", RACE),
    Pattern("benign_race_tests/fail/writeafterread_otherval", (1, 64), "b[t] = a[0]\na[0] = 5", RACE, benign=True),
    Pattern("benign_race_tests/fail/writereadarray_equality", (1, 32), "a[t] = 0\nb[t] = a[t + 1]", RACE),
    Pattern("benign_race_tests/fail/writetiddiv64_offbyone", (1, 65), "a[0] = t // 64", RACE),
    Pattern("cooperative_groups/fail/race", (2, 32), SHIFTED.format("pass"), RACE),
    Pattern(
        "cooperative_groups/fail/divergence_thread_block",
        (1, 32),
        "if t % 2 == 0:\n    v = a[i + 2]\n    cuda.syncthreads()\n    a[i] = v",
        DIVERGENCE,
    ),
    Pattern(
        "cooperative_groups/fail/divergence_grid_group",
        (1, 32),
        "if t % 2 == 0:\n    v = a[i + 2]\n    cuda.cg.this_grid().sync()\n    a[i] = v",
        DIVERGENCE,
    ),
    Pattern(
        "cooperative_groups/fail/block_divergence_grid_group",
        (2, 32),
        "if cuda.blockIdx.x == 0:\n    v = a[i + 2]\n    cuda.cg.this_grid().sync()\n    a[i] = v",
        "deadlock",
    ),
    Pattern(
        "divergence/race_and_divergence",
        (1, 64),
        "v = a[i] if t else 1\nif v == 0:\n    cuda.syncthreads()\nb[0] = v",
        DIVERGENCE,
        benign=True,
    ),
    Pattern("fail_tests/race_on_shared", (1, 16), SHARED.format("(16,)") + "s[0] = t", RACE),
    Pattern("inter_group/local_id", (4, 32), "a[t] = cuda.blockIdx.x", RACE),
    Pattern("inter_group/sync", (4, 32), "a[i] = i\ncuda.syncthreads()\na[i + 1] = i", RACE),
    Pattern("inter_group/bad_read_then_write", (1, 64), "v = a[0]\nif t == 1:\n    a[0] = v + 1", RACE),
    Pattern(
        "misc/fail/2d_array_race",
        (1, (8, 8)),
        SHARED.format("(9, 8)") + "y = cuda.threadIdx.y\ns[y, t] = 1\n"
        "if y == 7:\n    s[8, t] = 1\ns[y + 1, t] += 1\na[y * 8 + t] = s[y, t]",
        RACE,
    ),
    Pattern("misc/fail/miscfail1", (1, 64), "a[t] = a[t + 1]\nb[t] = a[t + 2]", RACE),
    Pattern("misc/fail/miscfail3 of OpenCL", (1, 16), IN_BLOCK, RACE),
    Pattern("misc/fail/miscfail3", (1, 64), "v = a[t + 5]\na[t] += v + 1", RACE),
    Pattern("misc/fail/miscfail10", (4, 16), "for k in range(16):\n    a[k] += b[k]", RACE),
    Pattern(
        "param_values/value_causing_race", (1, 512), "if t == 15:\n    a[t + 185] = t\nif t == 200:\n    a[t] = t", RACE
    ),
    Pattern("report_global_id/test1", (2, (2, 3)), "if t == 0:\n    a[0] = cuda.threadIdx.y", RACE),
    Pattern(
        "sourcelocation_tests/barrier_divergence", (2, 64), "if t == 3:\n    cuda.syncthreads()\na[i] = t", DIVERGENCE
    ),
    Pattern(
        "sourcelocation_tests/race_from_call_in_loop",
        (1, 16),
        "for k in range(5):\n    b[t] = a[t]\na[t + 1] = t + 1",
        RACE,
    ),
    Pattern("warpsync/2d without its barrier", (1, (4, 4)), TRANSPOSED.format("pass"), RACE),
    Pattern("warpsync/bad_inter_group", (4, 32), "a[i] += a[i + cuda.blockDim.x] + 1", RACE),
    Pattern("warpsync/broken_shuffle", (1, 128), "base = t // 32 * 32\na[t] = a[base + (t + 1) % 32] + 1", RACE),
    Pattern("warpsync/intragroup_scan across warps", (1, 64), SCAN.replace("t % 32", "t"), RACE),
]
