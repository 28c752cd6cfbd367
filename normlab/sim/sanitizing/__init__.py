"""`sanitize`: a launch that finds races, reads of garbage, bad indices, divergent barriers, wrong masks and deadlocks.

`sanitizer` is the observer, and has all else as parts. `watch` knows the running thread, `clocks` what happens before
what, `shadow` and `shadows` which accesses each element has had, `inputs` which arrays are only read and need neither.
`arrays`, `elements`, `accesses` and `copies` take the accesses, `meetings` the barriers. `notes`, `races`, `remote`,
`lanes` and `hangs` find mistakes; `bounds`, `places` and `loops` read indices, call sites and loops for them.
`collector`, `advice` and `findings` make the report.

What is held to be wrong, and where a GPU may differ:

- Two accesses race if nothing orders them and one is a write, unless both are atomics. Barriers, grid syncs and warp
  operations (`syncwarp` and everything that ends in `_sync`; not `activemask`) order; so do atomics after a fence
  (`clocks.py`). CUDA promises order in memory for `syncwarp` alone; programs rely on it for shuffles and votes, too.
- A `team_sync` orders the threads that meet there, and no others.
- A `cluster_sync` orders the threads of those of the cluster's blocks that have not ended. Another block's shared
  memory is there from the first `cluster_sync` on until its block may have ended: an access at another time races.
- An asynchronous copy writes its target at any time until its thread has waited for it, so every earlier access to the
  target races, also one by the same thread. Writes of the source in the meantime are not looked for.
- One run is enough, because order is computed and not observed: any `schedule` gives the same findings, except where a
  value that is read decides which way the program takes, and where one atomic hands over to another.
- A read of memory that no other thread writes at the same time is a read of garbage; otherwise it is a race.
- A thread that has returned counts as arrived at later barriers, as on today's GPUs, and the barrier is reported. A
  grid sync is not reported while thread 0 of every block comes to it: the other blocks wait for that thread alone.
- The launch goes on after a finding: a read out of bounds gives poison (NaN, or a large integer), such a write is
  dropped, a negative index wraps as Numba's do, a shuffle from nowhere gives the lane its own value.
- Arrays that a kernel takes from outside (globals, closures) and constant arrays are not watched.
- Of an element that 64 threads or more access between two barriers, a sample is kept (`shadow.together`): a race is
  missed if each of these, and not another one that races, has signalled by a fence and an atomic of its own, or has
  come to its team's barrier for the first time.
- Threads that come to one barrier in different turns of a loop, each as often, are not told apart.
- A `while` on a plain load goes on when another thread has stored, and the race is reported; on a GPU it may spin for
  ever on a value that was loaded once. `simulate` lets others run only at atomics, `ldcv` and `nanosleep`.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from normlab.sim.language.arrays import adopt
from normlab.sim.language.errors import BarrierError, DeadlockError
from normlab.sim.machine.launch import Launch, Launchable, adopt_arguments, described
from normlab.sim.sanitizing.findings import KINDS, Act, Finding, Report
from normlab.sim.sanitizing.inputs import arrays_in, inputs_of
from normlab.sim.sanitizing.sanitizer import Sanitizer

__all__ = ["KINDS", "Act", "Finding", "Report", "sanitize"]


def sanitize(
    kernel: Any, uninitialized: Iterable[Any] = (), schedule: str | int = "forward", cluster: int = 1
) -> Launchable:
    """Return `kernel` as something to launch under watch: `sanitize(kernel)[grid, block](*arguments)` gives a `Report`.

    `kernel`, `schedule`, `cluster`, the launch configuration and the arguments are those of `simulate`; results are
    computed in place. `uninitialized`: those of the arguments (arrays, by identity or memory) whose contents count as
    never written, such as an output that was allocated empty.

    Raises TypeError and ValueError as `simulate` does, TypeError for an `uninitialized` that is no array, ValueError
    for one that is not among the arguments. What the kernel itself raises comes out, with the findings so far in a
    note, and the `Report` so far as its attribute `sanitizer_report`.

    >>> import numpy as np
    >>> from numba import cuda, float32
    >>> @cuda.jit
    ... def reverse(x):
    ...     buffer = cuda.shared.array(32, float32)
    ...     buffer[cuda.threadIdx.x] = x[cuda.threadIdx.x]
    ...     x[cuda.threadIdx.x] = buffer[31 - cuda.threadIdx.x]
    >>> report = sanitize(reverse)[1, 32](np.ones(32, np.float32))
    >>> report.ok, [finding.kind for finding in report.findings]
    (False, ['race'])
    >>> report.findings[0].advice
    'no barrier between the write at line 4 and the read at line 5: put cuda.syncwarp() between them'
    """
    arrays = [*_arrays(uninitialized)]
    return Launchable("sanitize", kernel, schedule, cluster, lambda launch, given: _watch(launch, given, arrays))


def _arrays(uninitialized: Any) -> Iterator[np.ndarray]:
    """Return what counts as never written as NumPy arrays, sharing memory."""
    if hasattr(uninitialized, "dtype") or not isinstance(uninitialized, Iterable):
        raise TypeError(
            f"uninitialized is a sequence of arrays, as in uninitialized=[out], not one {type(uninitialized).__name__}"
        )
    for array in uninitialized:
        adopted = adopt(array) if hasattr(array, "dtype") else array
        if not isinstance(adopted, np.ndarray):
            raise TypeError(f"uninitialized holds {described(array)}; it takes arrays among the launch's arguments")
        yield np.asarray(adopted)


def _watch(launch: Launch, arguments: tuple, uninitialized: list[np.ndarray]) -> Report:
    """Run a launch to its end, or as far as it comes."""
    name = launch.function.__name__
    adopted = adopt_arguments(launch.function, arguments)
    given = [*arrays_in(adopted)]
    for array in uninitialized:
        if array.size and not any(np.may_share_memory(array, argument) for argument in given):
            raise ValueError(
                f"uninitialized holds an array of shape {array.shape} and dtype {array.dtype} that is not among the "
                f"arguments of kernel {name!r}"
            )
    sanitizer = Sanitizer(uninitialized, inputs_of(launch.function.__code__, adopted, uninitialized))
    try:
        launch.run(arguments, sanitizer)
    except (BarrierError, DeadlockError):  # which are findings
        pass
    except BaseException as error:
        report = sanitizer.report(name)
        error.sanitizer_report = report  # type: ignore[attr-defined]
        if not report.ok:
            error.add_note(str(report))
        raise
    return sanitizer.report(name)
