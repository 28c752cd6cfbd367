"""The parts of an exercise: drawn inputs, launches, right answers with their bounds, budgets, hints.

The modules in `checks/` describe one exercise each with these classes, and `grading` uses them. Nothing here runs a
kernel.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

# Budgets use Nsight Compute's metric names, from `normlab.sim.METRICS`; messages to students use plainer words.
LOADS = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
LOADED_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
STORES = "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"
STORED_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"
LOAD_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"
STORE_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum"
SHUFFLES = "normlab__shuffles.sum"
BARRIERS = "normlab__barriers.sum"
GRID = "launch__grid_size"  # of a launch, in Nsight Compute's words
GLOBAL_ATOMICS = "normlab__atomics_mem_global.sum"
SHARED_LOADS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"
SHARED_STORES = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"
BUSIEST_LOADS = "normlab__busiest_thread_global_elements_op_ld.max"  # from here on they are the course's own (`costs`)
BUSIEST_STORES = "normlab__busiest_thread_global_elements_op_st.max"
BUSIEST_SHARED = "normlab__busiest_thread_shared_accesses.max"
SHARED_ACCESSES = "normlab__shared_accesses.sum"
EXCHANGES = "normlab__exchanges.sum"
BUSIEST = BUSIEST_LOADS, BUSIEST_STORES, BUSIEST_SHARED
WORDS = {
    LOADS: "loads by warps",
    LOADED_SECTORS: "sectors loaded",
    STORES: "stores by warps",
    STORED_SECTORS: "sectors stored",
    LOAD_CONFLICTS: "bank conflicts of loads",
    STORE_CONFLICTS: "bank conflicts of stores",
    GRID: "blocks launched",
    SHARED_LOADS: "loads of shared memory",
    SHARED_STORES: "stores to shared memory",
    BUSIEST_LOADS: "elements of global memory loaded by one thread",
    BUSIEST_STORES: "elements of global memory stored by one thread",
    BUSIEST_SHARED: "accesses of shared memory by one thread",
    SHARED_ACCESSES: "accesses of shared memory by all threads together",
    EXCHANGES: "exchanges of warps: shuffles, votes, and accesses of shared memory",
}

Extent = int | tuple[int, ...]


class Chosen(NamedTuple):
    """The size of a grid that the solution chooses: a function of its file, and the numbers to call it with."""

    function: str
    arguments: tuple[int, ...]


class Launch(NamedTuple):
    """One launch of a kernel of the solution; an argument that is a string stands for the array of that name."""

    kernel: str
    grid: Extent | Chosen
    block: Extent
    arguments: tuple[Any, ...]


class Answer(NamedTuple):
    """The values that an array must hold after the launches, and a bound on their errors; NaN demands an equal NaN."""

    value: ArrayLike
    bound: ArrayLike


@dataclass(frozen=True)
class Case:
    """One input. Arrays named in `want` or `scratch` are filled with NaN, and count as unwritten for the sanitizer.

    `in_place`: those in `want` that are inputs, too. They keep their values, and a kernel writes its results over them.
    """

    launches: list[Launch]
    arrays: dict[str, np.ndarray]
    want: dict[str, Answer]
    scratch: tuple[str, ...] = ()
    in_place: tuple[str, ...] = ()

    @property
    def fresh(self) -> list[str]:
        """Return the names of the arrays that hold nothing before the launches."""
        return [name for name in (*self.want, *self.scratch) if name not in self.in_place]


@dataclass(frozen=True)
class Size:
    """The range of a drawn size, and the edge values that every check visits.

    `beyond`: some draws have values beyond the range, up to this one, and one lies above the next power of two, so that
    a solution with a fixed limit fails; 0: the exercise limits the size. `multiples_of`: some of the sizes beyond the
    range are multiples of it.
    """

    smallest: int
    largest: int
    edges: tuple[int, ...] = ()
    beyond: int = 0
    multiples_of: int = 0

    @property
    def is_flag(self) -> bool:
        """Return whether the size is a choice of two, 0 or 1."""
        return (self.smallest, self.largest) == (0, 1)

    def small(self, rng: np.random.Generator) -> int:
        """Return a value from the lower half of the range, or any of a flag's."""
        highest = self.largest if self.is_flag else (self.smallest + self.largest) // 2
        return int(rng.integers(self.smallest, highest + 1))

    def large(self, rng: np.random.Generator) -> int:
        """Return a value from the upper half of the range, or any of a flag's."""
        lowest = self.smallest if self.is_flag else (self.smallest + self.largest + 1) // 2
        return int(rng.integers(lowest, self.largest + 1))

    def beyond_the_range(self, rng: np.random.Generator) -> int:
        """Return a size beyond the range, and at least half of `beyond`."""
        return int(rng.integers(max(self.largest + 1, self.beyond // 2), self.beyond + 1))

    def above_a_power_of_two(self, rng: np.random.Generator) -> int:
        """Return a size a little above the power of two after `beyond`, because fixed limits are powers of two."""
        power = 1 << self.beyond.bit_length()
        return power + int(rng.integers(1, 2 + power // 32))

    def multiple_beyond(self, rng: np.random.Generator) -> int:
        """Return a size beyond the range that is a multiple of `multiples_of`, if there is one."""
        return self.beyond_the_range(rng) // max(self.multiples_of, 1) * max(self.multiples_of, 1)


@dataclass(frozen=True)
class Drawn:
    """The draw from which a case is made: its sizes, a kind of data (`data.values`) and a seed."""

    sizes: dict[str, int]
    kind: str
    seed: int

    @property
    def rng(self) -> np.random.Generator:
        """Return the generator of this case's numbers."""
        return np.random.default_rng(self.seed)

    def __getitem__(self, name: str) -> int:
        """Return the size `name`."""
        return self.sizes[name]

    def __str__(self) -> str:
        """Return the sizes and the kind as text for messages."""
        return ", ".join([*(f"{name} = {size}" for name, size in self.sizes.items()), f"{self.kind} values"])


@dataclass(frozen=True)
class Cost:
    """A metric that a solution may not need more of than the reference solution does on the same input.

    `times`: the factor by which it may exceed the reference. `spare`: another metric, whose count in the reference
    solution is added to the limit. `exactly`: less is wrong, too. Messages append `why`.
    """

    metric: str
    why: str
    exactly: bool = False
    times: float = 1
    spare: str | None = None

    def at_most(self, needed: Callable[[str], int]) -> int:
        """Return the limit. needed: returns the reference solution's count of a metric."""
        return int(self.times * needed(self.metric)) + (needed(self.spare) if self.spare else 0)


@dataclass(frozen=True)
class Budget:
    """The largest value of a metric on the exercise's example, from a teacher's file; messages append `why` to it."""

    metric: str
    at_most: int
    why: str


NEIGHBOURS_LOADED = "lanes that load neighbours share their sectors of 32 bytes, unlike a walk that loads them again"
NEIGHBOURS_STORED = "neighbouring lanes that store neighbours share their sectors of 32 bytes"
# Every solution must make as few requests of global memory as the reference solution.
TRAFFIC = (
    Cost(LOADS, "a warp loads 32 neighbours by one instruction, and no element again that a loop before has loaded"),
    Cost(LOADED_SECTORS, NEIGHBOURS_LOADED),
    Cost(STORES, "a warp stores 32 neighbours by one instruction"),
    Cost(STORED_SECTORS, NEIGHBOURS_STORED),
    Cost(GLOBAL_ATOMICS, "an atomic operation on global memory costs more than a load or a store"),
)
# For work between threads, another right solution may need twice as much. An exercise that can be solved with shuffles
# or with shared memory counts all of this work together (TOGETHER) instead.
BETWEEN = (
    Cost(BARRIERS, "at a barrier all threads of the block wait", times=2),
    Cost(SHUFFLES, "five shuffles add up 32 lanes", times=2),
    Cost(SHARED_LOADS, "shared memory is for what threads have to exchange", times=2),
    Cost(SHARED_STORES, "shared memory is for what threads have to exchange", times=2),
)
TOGETHER = {EXCHANGES, SHARED_ACCESSES}
# A solution may walk along a row from its end. Then 128 bytes may begin in the middle of a sector, and touch one more.
ANYWHERE = (
    Cost(LOADED_SECTORS, NEIGHBOURS_LOADED, spare=LOADS),
    Cost(STORED_SECTORS, NEIGHBOURS_STORED, spare=STORES),
)


@dataclass(frozen=True)
class Exercise:
    """One exercise. `make` turns a draw into a case; `kinds` lists the kinds of data, the most readable kind first."""

    name: str  # the file's name without the number
    title: str
    make: Callable[[Drawn], Case]
    sizes: dict[str, Size]
    example: dict[str, int]  # sizes of one input on which costs are counted, and of which pictures are drawn
    hints: tuple[str, ...]
    kinds: tuple[str, ...] = ("counting", "normal", "offset")
    also: tuple[tuple[dict[str, int], str], ...] = ()  # sizes and kinds of inputs that every check visits, too
    costs: tuple[Cost, ...] = ()  # counted beside TRAFFIC and BETWEEN, or in place of one there
    tutorial: int = 1  # the number of the tutorial that teaches what the exercise needs
    lines: int | None = None  # the most lines of code that a solution may add
    picture: Any = "tree"  # what --show draws: "tree", "banks", "sectors", or a Picture of its own (`pictures`)

    def draws(self, seed: int, count: int) -> list[Drawn]:
        """Return the smallest input, every edge of every size, the example and `count` random draws, sorted by size.

        Sizes without a limit are also drawn beyond their range. These draws and those of `also` have small values of
        the other sizes.
        """
        rng = np.random.default_rng([seed, *self.name.encode()])
        chosen = [{name: size.smallest for name, size in self.sizes.items()}]
        chosen += [{name: edge} for name, size in self.sizes.items() for edge in size.edges]
        chosen += [self.example] + [{}] * count
        drawn = [self.example_case]
        for number, fixed in enumerate(chosen):
            free = {name: int(rng.integers(size.smallest, size.largest + 1)) for name, size in self.sizes.items()}
            kind = self.kinds[number % len(self.kinds)]
            drawn.append(Drawn(free | fixed, kind, int(rng.integers(1 << 31))))
        # Generators of their own: another `count` changes none of these draws.
        drawn += self._beyond(np.random.default_rng([seed, 2, *self.name.encode()]))
        rng = np.random.default_rng([seed, 3, *self.name.encode()])
        drawn += [self._near(fixed, kind, rng) for fixed, kind in self.also]
        return sorted(drawn, key=lambda one: (np.prod([*one.sizes.values()]), self.kinds.index(one.kind)))

    def _beyond(self, rng: np.random.Generator) -> list[Drawn]:
        found = []
        for name, size in self.sizes.items():
            if not size.beyond:
                continue
            far = [(size.above_a_power_of_two(rng), self.kinds[0])]
            far += [(size.multiple_beyond(rng), kind) for kind in self.kinds[1:]]
            for value, kind in far:
                found.append(self._near({name: value}, kind, rng))
        return found

    def _near(self, fixed: dict[str, int], kind: str, rng: np.random.Generator) -> Drawn:
        """Return a draw that has the sizes `fixed`, and small ones of the others."""
        near = {name: size.small(rng) for name, size in self.sizes.items()}
        return Drawn(near | fixed, kind, int(rng.integers(1 << 31)))

    def counted(self, seed: int, count: int) -> list[Drawn]:
        """Return the inputs on which costs are counted: the example's sizes, `count` draws of large sizes, and more.

        The first of these draws has the multiples of `Size.multiples_of`, where one round too many shows. Its flags are
        not the example's, so that both branches of a kernel are counted. One more draw has the size that may grow the
        most far beyond its range, where a thread has more elements than registers (`costs.REGISTERS`). The values come
        from the seed, too, and have no pattern, so a solution cannot know that its costs are being counted.
        """
        rng = np.random.default_rng([seed, 1, *self.name.encode()])
        sizes = [self.example]
        for number in range(count):
            drawn = {name: size.large(rng) for name, size in self.sizes.items()}
            if number == 0:
                drawn |= {name: one.multiple_beyond(rng) for name, one in self.sizes.items() if one.multiples_of}
                drawn |= {name: 1 - self.example[name] for name, one in self.sizes.items() if one.is_flag}
            sizes.append(drawn)
        name, size = max(self.sizes.items(), key=lambda one: one[1].beyond)
        if size.beyond and not size.multiples_of:
            others = {other: one.large(rng) for other, one in self.sizes.items()}
            sizes.append(others | {name: size.above_a_power_of_two(rng)})
        return [Drawn(one, "normal", int(rng.integers(1 << 31))) for one in sizes]

    @property
    def other_costs(self) -> list[Cost]:
        """Return the costs of TRAFFIC and BETWEEN whose metric is not among the exercise's own costs."""
        own = {cost.metric for cost in self.costs}
        others = TRAFFIC if own & TOGETHER else (*TRAFFIC, *BETWEEN)
        return [cost for cost in others if cost.metric not in own]

    def simpler(self, drawn: Drawn) -> list[Drawn]:
        """Return draws that are simpler than `drawn` in one respect, the simplest first."""
        found = []
        for name, size in self.sizes.items():
            less = drawn[name] - size.smallest
            while less > 0:  # halve the distance to the drawn size, from the smallest size on
                found.append(Drawn(drawn.sizes | {name: drawn[name] - less}, drawn.kind, drawn.seed))
                less //= 2
        kinds = self.kinds[: self.kinds.index(drawn.kind)] if drawn.kind in self.kinds else ()
        return found + [Drawn(drawn.sizes, kind, drawn.seed) for kind in kinds]

    @property
    def branches(self) -> list[Drawn]:
        """Return the example, and for each flag the example with the flag's other value."""
        flags = [name for name, size in self.sizes.items() if size.is_flag]
        others = [self.example | {name: 1 - self.example[name]} for name in flags]
        return [self.example_case, *(Drawn(sizes, self.kinds[0], 0) for sizes in others)]

    @property
    def example_case(self) -> Drawn:
        """Return the input that pictures show, and on which a teacher's budgets are counted."""
        return Drawn(self.example, self.kinds[0], 0)
