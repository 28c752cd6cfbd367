"""Check a kernel, its launch configuration and its arguments, and run the launch: `simulate`."""

import inspect
import operator
from collections.abc import Callable, Sequence
from math import prod
from types import FunctionType
from typing import Any

import numpy as np

from normlab.sim.language.arrays import adopt, is_record
from normlab.sim.language.errors import SimulationError, own_lines
from normlab.sim.language.rewrite import Rewriter, python_function
from normlab.sim.language.variables import Types
from normlab.sim.machine.api import Cuda
from normlab.sim.machine.checking import check as check_with_compiler
from normlab.sim.machine.clusters import MAX_CLUSTER
from normlab.sim.machine.cooperative import blocks_at_once, is_cooperative
from normlab.sim.machine.memory import MAX_SHARED
from normlab.sim.machine.observe import Observer
from normlab.sim.machine.scheduler import Grid, schedule_order
from normlab.sim.machine.threads import Dim3

# Limits of all compute capabilities since 3.0 (CUDA programming guide, technical specifications per compute
# capability).
MAX_THREADS_PER_BLOCK = 1024
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = (2**31 - 1, 65535, 65535)
ENGINES = ("auto", "vectorised", "scheduler")
FEWEST_THREADS = 12  # of a launch that is worth running all threads at once
# The rewritten kernel, its adopted arguments, the launch's namespace, the kernel's function, the blocks of a cluster,
# whether to insist, the observer, whether to prove that no schedule changes a result, and the arrays that count as
# never written if the engine is to prove that `sanitize` would find nothing → None if it ran the launch, else why not.
FirstEngine = Callable[
    [FunctionType, list, Cuda, FunctionType, int, bool, Observer | None, bool, Sequence[np.ndarray] | None], str | None
]
first_engines: list[FirstEngine] = []  # vectorised/ puts itself here; the scheduler needs none


def simulate(
    kernel: Any,
    schedule: str | int = "forward",
    cluster: int = 1,
    check: bool = False,
    engine: str = "auto",
    explain: bool = False,
) -> "Launchable":
    """Return `kernel` as something to launch without a GPU: `simulate(kernel)[grid, block](*arguments)`.

    `kernel`: what `numba.cuda.jit` returns, or a plain Python function that uses `cuda`; its Python body runs, with
    every device function that it names, on NumPy arrays and torch CPU tensors in place. `schedule`: the order in
    which blocks, warps and lanes take their turns, "forward", "reverse" or an int seed for permutations; the same
    schedule gives the same run. `cluster`: so many blocks, neighbours along x, make a thread-block cluster. `check`:
    ask Numba first whether it compiles the kernel for the arguments' types; that takes 0.02 to 1 s, once per kernel and
    types, and a second more for the first kernel. Without it a device function gets an index or an integer literal as a
    Python int: `scale(x[i], 3)` of a float32 stays float32, where Numba makes the 3 an int64 and the result a float64.

    Two engines give the same results. The vectorised one (vectorised/) runs all threads of many blocks at once and
    gives up where it cannot prove that; the scheduler then runs the launch, one thread after another. `engine`: "auto",
    or "scheduler" to run that alone, or "vectorised" to raise SimulationError where it gives up. `explain`: a launch
    returns a sentence that says which engine ran, and why.

    The launch configuration is Numba's: grid and block (an int or a tuple of up to three), then, if need be, a stream
    (which is ignored) and the bytes of dynamic shared memory.

    Raises TypeError for what is not a kernel, for a wrong number of arguments and for arguments that a kernel cannot
    take; ValueError for an unknown schedule, an impossible configuration or cluster. A launch raises `SimulationError`
    where a GPU would hang (`DeadlockError`) or compute garbage, and `CompilerError` where `check` finds that Numba
    refuses the kernel. What the kernel itself raises comes out as it is, with a note of block and thread.

    >>> import numpy as np
    >>> from numba import cuda
    >>> @cuda.jit
    ... def reverse_within_warp(x):
    ...     lane = cuda.threadIdx.x
    ...     x[lane] = cuda.shfl_sync(0xFFFFFFFF, x[lane], 31 - lane)
    >>> x = np.arange(32, dtype=np.float32)
    >>> simulate(reverse_within_warp)[1, 32](x)
    >>> x[:4]
    array([31., 30., 29., 28.], dtype=float32)
    """
    # Before any launch, so that a typing mistake is reported at the call that contains it.
    engine_named(engine)

    def start(launch: Launch, arguments: tuple) -> str | None:
        return launch.ran(arguments, engine, explain)

    return Launchable("simulate", kernel, schedule, cluster, start, check)


def described(value: Any) -> str:
    """Return what errors call a value: its type and how it prints."""
    return f"the {type(value).__name__} {value!r}"


def engine_named(engine: str) -> None:
    """Raise ValueError unless an engine has this name."""
    if engine not in ENGINES:
        raise ValueError(f"engine is one of {', '.join(ENGINES)}, not {engine!r}")


class Launchable:
    """A kernel that has no launch configuration yet."""

    def __init__(
        self,
        verb: str,
        kernel: Any,
        schedule: str | int,
        cluster: int,
        start: Callable[["Launch", tuple], Any],
        check: bool = False,
    ):
        """Keep the kernel for `start`, which is called with each launch and its arguments.

        `verb`: the function's name that the caller knows this by. `check`: as `simulate`'s. Raises TypeError for what
        is not a kernel and for a cluster that is no int, ValueError for an unknown schedule or a cluster that no GPU
        has.
        """
        function = kernel if isinstance(kernel, FunctionType) else python_function(kernel)
        if function is None:
            raise TypeError(f"{verb} takes a numba.cuda.jit kernel or a Python function, not {described(kernel)}")
        # Numba keeps the options of cuda.jit on the dispatcher; a device function looks like a kernel otherwise.
        if getattr(kernel, "targetoptions", {}).get("device"):
            raise TypeError(f"{function.__name__!r} is a device function; only a kernel can be launched")
        # Called for its error alone: a wrong schedule is told here and not in the middle of a launch.
        schedule_order(schedule)
        # bool is a subclass of int in Python, and True would pass for a cluster of one.
        if isinstance(cluster, bool) or not isinstance(cluster, int):
            raise TypeError(f"cluster is a number of blocks, an int, not {described(cluster)}")
        if not 1 <= cluster <= MAX_CLUSTER:
            raise ValueError(f"a cluster has 1 to {MAX_CLUSTER} blocks, not {cluster}")
        self.verb, self.function, self.start = verb, function, start
        self.schedule, self.cluster = schedule, cluster
        self.checked = kernel if check else None
        self.types: Types | None = None

    def __getitem__(self, configuration: Any) -> "Launch":
        """Return the kernel configured by `grid, block[, stream[, dynamic_shared_bytes]]`."""
        if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 4:
            raise ValueError(
                "a launch needs [grid, block], and may add a stream and the bytes of dynamic shared memory; "
                f"got [{configuration!r}]"
            )
        # `zip` ends after grid and block. A stream, which may follow, has no effect: a launch is over when it returns.
        grid, block = (
            extent3(what, extent, limits)
            for what, extent, limits in zip(("grid", "block"), configuration, (MAX_GRID, MAX_BLOCK), strict=False)
        )
        threads = block.x * block.y * block.z
        if threads > MAX_THREADS_PER_BLOCK:
            raise ValueError(f"block {block} has {threads} threads; a block has at most {MAX_THREADS_PER_BLOCK}")
        dynamic_shared_bytes = configuration[3] if len(configuration) == 4 else 0
        if not hasattr(dynamic_shared_bytes, "__index__"):
            raise TypeError(f"the bytes of dynamic shared memory must be an int, not {described(dynamic_shared_bytes)}")
        if dynamic_shared_bytes < 0:
            raise ValueError(f"the bytes of dynamic shared memory cannot be negative: {dynamic_shared_bytes}")
        if dynamic_shared_bytes > MAX_SHARED:
            raise ValueError(
                f"{dynamic_shared_bytes} bytes of dynamic shared memory are more than the {MAX_SHARED} that a block has"
            )
        # The driver refuses such a launch, too: a cluster must be whole.
        if grid.x % self.cluster:
            raise ValueError(f"grid {grid} has {grid.x} blocks along x, no multiple of the cluster's {self.cluster}")
        return Launch(self, grid, block, int(dynamic_shared_bytes))

    def typed(self, types: Types) -> "Launchable":
        """Return the kernel with what a check has told of its variables already, as `normlab run` checks it."""
        self.types = types
        return self

    def __call__(self, *arguments: Any) -> None:
        """Raise ValueError, because a kernel is launched with a configuration."""
        name = self.function.__name__
        raise ValueError(f"kernel {name!r} needs a launch configuration: {self.verb}({name})[grid, block](...)")


class Launch:
    """A kernel with its launch configuration; calling it is the launch."""

    def __init__(self, kernel: Launchable, grid: Dim3, block: Dim3, dynamic_shared_bytes: int):
        """Keep everything that a launch needs except its arguments."""
        self.function, self.grid, self.block, self.cluster = kernel.function, grid, block, kernel.cluster
        self._schedule, self._dynamic_shared_bytes, self._start = kernel.schedule, dynamic_shared_bytes, kernel.start
        self._checked, self.types = kernel.checked, kernel.types

    def __call__(self, *arguments: Any) -> Any:
        """Launch on `arguments`."""
        try:
            self._check_cooperative()
            # The compiler refuses what Python would do without a word. The types that it finds guide the rewriting.
            if self._checked is not None:
                adopted = adopt_arguments(self.function, arguments)
                self.types = check_with_compiler(self._checked, self.function, arguments, adopted)
            return self._start(self, arguments)
        except BaseException as error:  # leave the kernel's lines in the traceback, without the simulator's
            error.__traceback__ = own_lines(error.__traceback__)
            raise

    def _check_cooperative(self) -> None:
        """Raise ValueError for more blocks than run at once, if they may wait for each other: the driver refuses."""
        blocks, most = prod(self.grid), blocks_at_once(prod(self.block), self._dynamic_shared_bytes)
        if blocks > most and is_cooperative(self.function):
            raise ValueError(
                f"kernel {self.function.__name__!r} is cooperative, because it uses this_grid(), and grid {self.grid} "
                f"has {blocks} blocks; an H200 holds {most} of them at once"
            )

    def run(self, arguments: tuple, observer: Observer | None = None, first: str = "scheduler") -> str | None:
        """Run the kernel to its end, in place on `arguments`; tell `observer` of every event.

        `first`: the engine to try, one of ENGINES. Return why it was the scheduler that ran the launch, or None.
        """
        function = self.function
        adopted = adopt_arguments(function, arguments)
        why_not = self._not_worth_trying(first, observer)
        if why_not is None:
            cuda, body = self._rewritten(adopted)
            # For another schedule the first engine runs the launch only if it proves that no schedule changes a result.
            unwritten: Sequence[np.ndarray] | None = () if self._reordered else None
            insist = first == "vectorised"  # then the engine tries even a kernel that it has given up several times
            options = self.cluster, insist, observer, self._reordered, unwritten
            why_not = first_engines[0](body, adopted, cuda, function, *options)
            if why_not is None:
                return None
        if first == "vectorised":
            raise SimulationError(f"the vectorised engine gives up, because {why_not}")
        # Rewritten once more: the first engine's source lacks the marks that an observer puts in.
        cuda, body = self._rewritten(adopted, observer)
        if observer is not None:
            # The frames that the observer meets have the rewritten code, not the function's own.
            observer.kernel_code = body.__code__
            parameters = parameters_of(function, len(adopted))
            adopted = [observer.adopt(value, one.name) for value, one in zip(adopted, parameters, strict=False)]
        else:
            # The host has a record as an array without axes. `[()]` is its one element, in the host's memory still.
            adopted = [value[()] if is_record(value) else value for value in adopted]
        order = schedule_order(self._schedule)
        # Every thread calls the same `body` on the same objects; it finds its own index in `cuda`.
        cuda.grid_run = Grid(
            cuda, function.__name__, lambda: body(*adopted), self.grid, self.block, order, self.cluster
        )
        cuda.grid_run.run()
        return why_not

    def proved(self, arguments: tuple, uninitialized: Sequence[np.ndarray], engine: str) -> str | None:
        """Run the kernel if the first engine proves that `sanitize` would find nothing; return None, or why not.

        `uninitialized`: arrays among the arguments that count as never written. `engine`: one of ENGINES.
        """
        why_not = self._not_worth_trying(engine)
        if why_not is not None:
            return why_not
        adopted = adopt_arguments(self.function, arguments)
        cuda, body = self._rewritten(adopted)
        options = self.cluster, engine == "vectorised", None, self._reordered, uninitialized
        return first_engines[0](body, adopted, cuda, self.function, *options)

    @property
    def _reordered(self) -> bool:
        """Return whether threads take turns in another order than by their numbers."""
        return self._schedule != "forward"

    def _rewritten(self, adopted: list, observer: Observer | None = None) -> tuple[Cuda, FunctionType]:
        """Return the namespace of one run of the launch, and the kernel rewritten for it."""
        cuda = Cuda(self.grid, self.block, self._dynamic_shared_bytes)
        if observer is not None:
            cuda.observer = observer
            # Before `observer.adopt`, which gives each array its address and its shadow.
            observer.attach(cuda)
        # One Rewriter a run: the rewritten functions hold this run's `cuda`.
        return cuda, Rewriter(cuda, self.types, adopted).function(self.function)

    def ran(self, arguments: tuple, engine: str, explain: bool) -> str | None:
        """Run the kernel by an engine, one of ENGINES; return, if `explain`, which one ran and why."""
        why_not = self.run(arguments, first=engine)
        if not explain:
            return None
        return "the vectorised engine ran" if why_not is None else f"the scheduler ran, because {why_not}"

    def _not_worth_trying(self, engine: str, observer: Observer | None = None) -> str | None:
        """Return why the scheduler runs this launch alone, or None."""
        if engine == "scheduler" or not first_engines:
            return "it was asked for"
        # An observer sees the order in which threads run, and the first engine has only the order of their numbers.
        if self._reordered and (observer is not None or self.cluster > 1):
            return f"the schedule is {self._schedule!r}"
        threads = prod((*self.grid, *self.block))
        return f"the launch has {threads} threads" if threads < FEWEST_THREADS and engine == "auto" else None


def adopt_arguments(function: FunctionType, arguments: tuple) -> list[Any]:
    """Return a launch's arguments as the kernel sees them; raises TypeError in the caller's words."""
    parameters = parameters_of(function, len(arguments))
    required = [parameter for parameter in parameters if parameter.default is parameter.empty]
    if not len(required) <= len(arguments) <= len(parameters):
        names = ", ".join(parameter.name for parameter in parameters)
        count = f"{len(parameters)} argument{'' if len(parameters) == 1 else 's'}"
        raise TypeError(f"kernel {function.__name__!r} takes {count} ({names}), got {len(arguments)}")
    adopted = []
    for position, (parameter, argument) in enumerate(zip(parameters, arguments, strict=False), start=1):
        try:
            # Its errors begin in the middle of a sentence, which is completed below with position, name and kernel.
            adopted.append(adopt(argument))
        except TypeError as error:
            raise TypeError(
                f"argument {position} ({parameter.name!r}) of kernel {function.__name__!r} {error}"
            ) from None
    return adopted


def parameters_of(function: FunctionType, count: int) -> list[inspect.Parameter]:
    """Return the parameters of a kernel that is given `count` arguments; `*args` is one for each that it takes."""
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[-1].kind is inspect.Parameter.VAR_POSITIONAL:
        last = parameters.pop()
        # All have the one name, as they have in the source: observers report each array under it.
        one = inspect.Parameter(last.name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters += [one] * (count - len(parameters))
    return parameters


def extent3(what: str, extent: Any, limits: tuple[int, int, int]) -> Dim3:
    """Return `extent`, an int or a tuple of up to three, as a Dim3; raises TypeError or ValueError naming `what`."""
    axes = extent if isinstance(extent, tuple) else (extent,)
    if not 1 <= len(axes) <= 3:
        raise ValueError(f"{what} has 1, 2 or 3 dimensions, not {len(axes)}: {extent!r}")
    if not all(hasattr(axis, "__index__") for axis in axes):
        raise TypeError(f"{what} must be an int or a tuple of ints, not {described(extent)}")
    # Axes that are not given have extent 1, as in CUDA's dim3.
    sizes = [operator.index(axis) for axis in axes] + [1] * (3 - len(axes))
    if min(sizes) < 1:
        raise ValueError(f"{what} must be at least 1 along every axis, got {extent!r}")
    for size, limit, axis in zip(sizes, limits, "xyz", strict=True):
        if size > limit:
            raise ValueError(f"{what} is at most {limit} along {axis}, got {extent!r}")
    return Dim3(*sizes)
