"""Simulate a GPU without a GPU.

`simulate` runs the Python body of any `numba.cuda` kernel, warps and barriers included. `trace` also counts the
kernel's memory requests (tracing/), and `sanitize` finds its bugs (sanitizing/).

Five rooms, each of which imports only those before it; the last three do not import each other:

- language/: what Python source means on the device. `rewrite` makes a kernel's function run here, `operators` compiles
  it anew, `integers`, `arithmetic`, `functions`, `libdevice` and `arrays` are what it computes with. `paths` lets a
  function report its calls and loops. `variables` and `overloads` bring in what a compiler knows.
- machine/: the imagined GPU. `launch` checks configuration and arguments; `scheduler` runs `threads` in a `warp`, a
  `block`, in `clusters`; `api`, `shuffles`, `atomics` and `memory` are what the kernel calls. `vector`, `asynchronous`,
  `teams`, `clusters` and `grid` have the twins of an engine's intrinsics: wide loads and stores, `cp.async`, barriers
  of a part of a block, distributed shared memory, a barrier of all blocks. `observe` and `observed` tell an observer of
  every access and every meeting of threads.
- vectorised/: the first engine of `simulate` and `trace`, which runs all threads of many blocks at once, one NumPy
  array for a variable. What it cannot prove equal goes to the machine's scheduler.
- tracing/ and sanitizing/: the two observers. The scheduler tells both of single threads; the vectorised engine tells
  the first of all threads at once.

`protocols.py` says what a lower file expects of the objects that a higher file implements.

Where it silently differs from a GPU (`tests/sim/test_against_gpu.py` compares it with one):

- Without `check=True` a variable has the type of its value, not one that unites all its assignments: `s = x[0] if c
  else 1.0`, with x float32, is float32 where c is true. An index (`language/indices.py`) and a literal given to a
  device function stay Python ints there, and a float32 that they meet stays float32, where Numba computes in float64.
  A complex literal takes the width of what it meets. With the check all these are Numba's (`language/variables.py`),
  except in a device function that one kernel calls with several types, and for the entries of tuples.
- A product and a sum are rounded apart, where NVVM may make them one fused multiply-add. `fastmath` changes nothing.
- An `assert` or `raise` ends the launch; on a GPU without `debug=True` the thread just returns, without a word.
- Indices have 64 bits, not 32, for the bit functions.
- An asynchronous copy reads its source when it begins and arrives when it is waited for, not in between.
- Shared and local arrays of bfloat16 work; numba-cuda 0.30.4 does not compile them.
- A launch ends before the next one begins, whatever `grid_dependency_sync` allows on a GPU.
- `cluster_arrive_shared` orders all memory, not the block's shared memory alone.
- Functions of `math` are NumPy's, a few ulp away from libdevice's.
- Memory has one order for all threads, so a missing fence changes no result (`sanitize` sees it); the result of a
  race depends on `schedule`.
- Without readable source (a kernel from `exec`, a notebook cell with magics) ints and operators are Python's.
"""

# The simulator imports nothing else of normlab, and no Numba: several packages compile CUDA kernels, and none of them
# has to be installed. `machine/checking.py` loads the engine's check by its name, if a launch asks for it.
from normlab.sim.language.errors import (
    BarrierError,
    CompilerError,
    DeadlockError,
    MaskError,
    ShuffleError,
    SimulationError,
)
from normlab.sim.language.rewrite import register_twin
from normlab.sim.machine.launch import simulate
from normlab.sim.machine.vector import copy_vector, read_vector, read_vector_into, write_vector, write_vector_from
from normlab.sim.sanitizing import Act, Finding, Report, sanitize
from normlab.sim.tracing import METRICS, Trace, trace
from normlab.sim.vectorised import NotVectorisedError, register_lanes

__all__ = [
    "METRICS",
    "Act",
    "BarrierError",
    "CompilerError",
    "DeadlockError",
    "Finding",
    "MaskError",
    "NotVectorisedError",
    "Report",
    "ShuffleError",
    "SimulationError",
    "Trace",
    "copy_vector",
    "read_vector",
    "read_vector_into",
    "register_lanes",
    "register_twin",
    "sanitize",
    "simulate",
    "trace",
    "write_vector",
    "write_vector_from",
]
