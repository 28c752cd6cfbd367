"""Find races, reads of garbage, bad indices, divergent barriers, wrong masks, deadlocks and lock orders: `sanitize`.

- `sanitizer` is the observer. It has all other files' classes as parts.
- `watch` finds the running thread and its line; `clocks` tells which of two accesses happened before the other;
  `gathering` does so for a cluster's barrier.
- `shadow` keeps the accesses of each element, and `shadows` makes it for each array. `inputs` finds the arrays that the
  kernel only reads, whose accesses need not be kept.
- `arrays`, `elements`, `accesses` and `copies` record accesses; `meetings` records barriers.
- `notes`, `races`, `remote`, `lanes`, `locks` and `hangs` find mistakes, with the help of `bounds` and `literals`
  (indices), `places` (call sites) and `loops`.
- `collector`, `advice` and `findings` make the report.

What the sanitizer takes for a mistake, and where a GPU may differ:

- Two accesses race if nothing orders them and one is a write, unless both are atomics, or one is an atomic and the
  other an `ldcv`, which polls what atomics store. Barriers, grid syncs and warp operations (`syncwarp` and everything
  that ends in `_sync`; not `activemask`) order; so do atomics after a fence (`clocks.py`). CUDA promises order in
  memory for `syncwarp` alone; programs rely on it for shuffles and votes, too.
- A race of stores that all store one value is benign: it is among the findings, and the report is `ok`.
- A `team_sync` orders the threads that meet there, and no others.
- A `cluster_sync` orders the threads of those of the cluster's blocks that have not ended. Another block's shared
  memory is there from the first `cluster_sync` on until its block may have ended: an access at another time races.
- An asynchronous copy writes its target at any time until its thread has waited for it. Every access to the target
  before that is a race, even by the same thread. Writes of the source during the copy are not checked.
- One run is enough, because order is computed and not observed: any `schedule` gives the same findings, except where a
  value that is read decides which way the program takes, and where one atomic hands over to another.
- A read of memory that no other thread writes at the same time is a read of garbage; otherwise it is a race.
- A thread that has returned counts as arrived at later barriers and grid syncs, as on today's GPUs, and is reported.
  If thread 0 of a block has returned, a grid sync is a deadlock, because the other blocks wait for thread 0.
- The launch goes on after a finding: a read out of bounds gives poison (NaN, or a large integer), such a write is
  dropped, a negative index wraps as Numba's do, a shuffle from nowhere gives the lane its own value.
- Arrays that a kernel takes from outside (globals, closures) and constant arrays are not checked.
- From 64 reads or updates of one element between two barriers on, or from 16 writes on, the sanitizer keeps a sample
  of them (`shadow.together` says which races it can then miss).
- A thread that follows an element's last atomic may access the element plainly, if the other threads had a fence before
  their atomics: the last block of a grid may reset the counter that told it so.
- Threads of a block that come to one barrier in different turns of a loop are reported, even if each comes as often.
- Locks that threads take in opposite orders are reported, whether or not the run came to the deadlock (`locks.py`). A
  lock is what a compare-and-swap or an exchange takes in a loop that only waits.
- A negative index is reported unless it stands in the source as a number: `x[-1]` is meant.
- A `while` on a plain load ends when another thread has stored, and the race is reported. On a GPU the loop may never
  end, because the compiler may load the value once. In a loop in which threads do not meet, `simulate` lets other
  threads run only at atomics, fences, `ldcv` and `nanosleep`.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from normlab.sim.language.arrays import adopt
from normlab.sim.language.errors import BarrierError, DeadlockError, SimulationError
from normlab.sim.machine.launch import Launch, Launchable, adopt_arguments, described, engine_named
from normlab.sim.sanitizing.findings import KINDS, Act, Finding, Report
from normlab.sim.sanitizing.inputs import arrays_in, inputs_of
from normlab.sim.sanitizing.sanitizer import Sanitizer

__all__ = ["KINDS", "Act", "Finding", "Report", "sanitize"]


def sanitize(
    kernel: Any,
    uninitialized: Iterable[Any] = (),
    schedule: str | int = "forward",
    cluster: int = 1,
    check: bool = False,
    engine: str = "auto",
) -> Launchable:
    """Return `kernel` as something to launch under watch: `sanitize(kernel)[grid, block](*arguments)` gives a `Report`.

    `kernel`, `schedule`, `cluster`, `check`, the launch configuration and the arguments are those of `simulate`;
    results are computed in place. `engine`: "auto" runs a launch in the vectorised engine where that proves that there
    is nothing to find, some hundred times faster; the others are those of `simulate`, too. `uninitialized`: the array
    arguments whose contents count as never written, such as an output that was allocated empty; views of an argument's
    memory are accepted too.

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
    # A list, because an iterator would be empty at the second launch; here, so that an error points at this call.
    arrays = [*_arrays(uninitialized)]
    engine_named(engine)
    return Launchable(
        "sanitize", kernel, schedule, cluster, lambda launch, given: _watch(launch, given, arrays, engine), check
    )


def _arrays(uninitialized: Any) -> Iterator[np.ndarray]:
    """Yield the arrays of `uninitialized` as NumPy arrays that share their memory."""
    # An array is iterable itself: uninitialized=out would be taken for a sequence of its rows.
    if hasattr(uninitialized, "dtype") or not isinstance(uninitialized, Iterable):
        raise TypeError(
            f"uninitialized is a sequence of arrays, as in uninitialized=[out], not one {type(uninitialized).__name__}"
        )
    for array in uninitialized:
        # `adopt` takes numbers and tuples, too, and its errors continue a sentence about a launch's argument.
        adopted = adopt(array) if hasattr(array, "dtype") else array
        if not isinstance(adopted, np.ndarray):
            raise TypeError(f"uninitialized holds {described(array)}; it takes arrays among the launch's arguments")
        yield np.asarray(adopted)


def _watch(launch: Launch, arguments: tuple, uninitialized: list[np.ndarray], engine: str) -> Report:
    """Run a launch with a Sanitizer as observer, and return its report, also after a deadlock."""
    name = launch.function.__name__
    adopted = adopt_arguments(launch.function, arguments)
    given = [*arrays_in(adopted)]
    for array in uninitialized:
        # A typing mistake here would silently switch the check off: the array would count as written.
        if array.size and not any(np.may_share_memory(array, argument) for argument in given):
            raise ValueError(
                f"uninitialized holds an array of shape {array.shape} and dtype {array.dtype} that is not among the "
                f"arguments of kernel {name!r}"
            )
    # Many times faster than the Sanitizer. An engine that gives up leaves all arrays as they were.
    why_not = launch.proved(arguments, uninitialized, engine)
    if why_not is None:
        return Report(name, ())
    if engine == "vectorised":
        raise SimulationError(f"the vectorised engine gives up, because {why_not}")
    sanitizer = Sanitizer(uninitialized, inputs_of(launch.function.__code__, adopted, uninitialized))
    try:
        launch.run(arguments, sanitizer)
    except (BarrierError, DeadlockError):  # both are among the findings already
        pass
    except BaseException as error:
        # Also KeyboardInterrupt: of a kernel that runs for minutes the findings so far are worth having.
        report = sanitizer.report(name)
        error.sanitizer_report = report  # type: ignore[attr-defined]
        if not report.ok:
            error.add_note(str(report))
        raise
    return sanitizer.report(name)
