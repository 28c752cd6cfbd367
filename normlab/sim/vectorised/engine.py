"""Run a launch with all threads of many blocks at once, or say why not.

The engine runs on the arguments in place, and keeps a copy of each array before its first store. Whatever it cannot
prove equal to the scheduler makes it undo the stores; the scheduler then runs the launch from the beginning, so errors
come from there, with the thread, the block and the line.
"""

from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from normlab.sim.machine.observe import Observer
from normlab.sim.vectorised.machine import Launched, Machine
from normlab.sim.vectorised.proof import Proof
from normlab.sim.vectorised.refusal import CrowdedError, NotVectorisedError, OrderError, RestartError, WholeGridError
from normlab.sim.vectorised.running import bound, invoke, prepared

LANES = 1 << 15  # of a chunk, or one block: measured on saxpy, a tiled product and mandelbrot
FEWEST = 32  # threads of a block that are worth running by themselves
PATIENCE, ANOTHER_TRY = 2, 16  # after so many refusals in a row, try every so many launches
ATTEMPTS = 40  # an attempt finds one more array whose loads must be recorded


class Learnt:
    """What the engine remembers of a kernel from launch to launch, to spend no time on attempts that fail."""

    def __init__(self, code: CodeType):
        """Know nothing of the kernel with this code yet."""
        self.code = code  # keeps its id
        self.recorded: set = set()  # keys of the arrays whose loads must be recorded
        self.lanes = LANES  # of a chunk; blocks, or clusters, that have more run one at a time
        self.whole = False  # whether all blocks run at once, because they meet
        self.refusals, self.skipped, self.why = 0, 0, ""

    def skips(self) -> bool:
        """Return whether to leave this launch to the scheduler, after the engine has given up several times."""
        if self.refusals < PATIENCE:
            return False
        self.skipped = (self.skipped + 1) % ANOTHER_TRY
        # Once in ANOTHER_TRY launches the engine tries again, because other arguments may suit it.
        return self.skipped != 0


_learnt: dict[tuple[int, bool, bool], Learnt] = {}  # by the code's id, and what was to be proved of a launch


def attempt(
    body: FunctionType,
    arguments: list,
    cuda: Any,
    original: FunctionType,
    cluster: int,
    insist: bool,
    observer: Observer | None,
    any_order: bool,
    uninitialized: Sequence[np.ndarray] | None,
) -> str | None:
    """Run a launch; return None, or why the scheduler must run it, with all arrays as they were.

    `body`: the rewritten kernel; `original`: its own function. `cluster`: blocks in a cluster. `insist`: try even a
    kernel that has failed before. `observer`: is told of all accesses, by its `lanes`. `uninitialized`: arrays that
    count as never written, to run the launch only if that proves that `sanitize` would find nothing (proof.py); None to
    prove nothing. `any_order`: prove, too, that no schedule changes a result.
    """
    # What is to be proved belongs to the key: a proof gives up where a plain run of the same kernel succeeds.
    key = id(original.__code__), uninitialized is not None, any_order
    learnt = _learnt.setdefault(key, Learnt(original.__code__))
    if not insist and learnt.skips():
        return learnt.why

    def begun() -> Launched:
        watch = None if observer is None else observer.lanes(cuda, cluster)
        proof = None if uninitialized is None else Proof(uninitialized, any_order)
        return Launched(cuda, cluster, learnt.recorded, watch, proof)

    why = _attempts(begun, body, arguments, learnt)
    learnt.refusals = 0 if why is None else learnt.refusals + 1
    learnt.why = f"as before, {why}"
    return why


def _attempts(begun: Callable[[], Launched], body: FunctionType, arguments: list, learnt: Learnt) -> str | None:
    """Run a launch, begun anew in every attempt; return None, or why the scheduler must run it."""
    # A GPU has no floating-point warnings.
    with np.errstate(all="ignore"):
        for _ in range(ATTEMPTS):
            launch = begun()
            try:
                _run_chunks(launch, body, arguments, learnt)
                return None
            except RestartError as restart:
                launch.restore()
                # `launch.recorded` is `learnt.recorded`, and has grown: the next attempt records one more array's
                # loads.
                learnt.whole |= isinstance(restart, WholeGridError)
            except OrderError as refusal:
                launch.restore()
                crowded = isinstance(refusal, CrowdedError)
                # Smaller chunks are not possible, or so small that the scheduler is faster. The next launch may have
                # other arguments, so it begins with large chunks again.
                if learnt.whole or _together(launch, learnt) == launch.cluster or launch.threads < FEWEST:
                    learnt.lanes = LANES
                    return _reason(body, refusal)
                # Logs that are too long need fewer blocks. An order that decides needs one block, or cluster, at a
                # time: then blocks run in the scheduler's order.
                learnt.lanes = learnt.lanes // 4 if crowded else 1
            except NotVectorisedError as refusal:
                launch.restore()
                return _reason(body, refusal)
            except Exception as error:  # whatever the kernel or the engine does wrong, the scheduler says it best
                launch.restore()
                if STRICT and not isinstance(error, ArithmeticError):  # which Python's complex numbers raise
                    raise
                return f"{type(error).__name__}: {error}"
    return "its arrays are written in too many ways"


def _reason(body: FunctionType, refusal: NotVectorisedError) -> str:
    where = f"{body.__code__.co_filename}:{refusal.line}: " if refusal.line else ""
    return f"{where}{refusal.reason}"


STRICT = False  # for tests: an unforeseen error comes out


def _together(launch: Launched, learnt: Learnt) -> int:
    """Return how many blocks run at once."""
    if learnt.whole and launch.fits_one_chunk:
        return launch.blocks
    return min(launch.blocks, launch.cluster * max(1, learnt.lanes // (launch.threads * launch.cluster)))


def _run_chunks(launch: Launched, body: FunctionType, arguments: list, learnt: Learnt) -> None:
    """Run the blocks of a launch, some at a time."""
    together = _together(launch, learnt)
    code = prepared(body)
    # Each argument that `*args` takes goes by the name of `*args`.
    names = code.parameters + [code.rest or ""] * (len(arguments) - len(code.parameters))
    given = [
        _argument(launch, value, place, name) for place, (value, name) in enumerate(zip(arguments, names, strict=False))
    ]
    parameters = bound(body, given, {})
    # Chunks run in the scheduler's order of blocks, so that a later block finds in memory what an earlier one has
    # written.
    for first in range(0, launch.blocks, together):
        machine = Machine(launch, first, min(together, launch.blocks - first))
        invoke(body, parameters, machine.all_lanes)
        machine.finish()
    # Only after the last chunk: until then any chunk may still give up, and the launch is undone.
    launch.finish()


def _argument(launch: Launched, value: Any, key: Any, name: str) -> Any:
    """Return an argument as the kernel sees it, which calls it `name`."""
    if isinstance(value, np.ndarray):
        return launch.array(value, key, name)
    if isinstance(value, tuple):
        parts = [_argument(launch, part, (key, place), f"{name}[{place}]") for place, part in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value
