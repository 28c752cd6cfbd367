"""Graph kernels with planted bugs, after the patterns of Indigo (Liu, Azami, Vanausdal and Burtscher, 2022).

Indigo is a collection of kernels over the edges of a graph, in every combination of a way to map vertices to threads,
an order in which to walk through a vertex's neighbours, and bugs. This file makes its CUDA patterns: one text for each
choice, put together by `source`. The artifact of HiRace (Jacobson, Burtscher and Gopalakrishnan, SC 2024) holds the
same 590 combinations. 346 of them are racy, because their names have one of `RACES`.

What differs from the original: the graph is small and dense, so that the conflict that a bug allows does occur; values
are int32 only; an atomic read is an atomic addition of 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from .texts import kernel_of

RACES = frozenset(("atomic", "guard", "sync", "race"))  # bugs that are races; `bounds` is an index out of bounds
VERTICES, DEGREE = 16, 5


@dataclass(frozen=True)
class Variant:
    """One kernel: what it computes, the threads of a vertex, how it walks through neighbours, and its bugs."""

    pattern: str  # conditional_edge, conditional_vertex, populate, pull, push, path
    threads: str  # of a vertex: "single" (one thread, one neighbour), "thread", "warp" or "block"
    options: frozenset[str]  # persistent, last, reverse, break, cond, shfl, traverse
    bugs: frozenset[str]  # atomic, bounds, guard, sync, race

    @property
    def name(self) -> str:
        """All choices, such as push-warp-cond-reverse-atomicBug."""
        return "-".join(
            [self.pattern, self.threads, *sorted(self.options), *(f"{bug}Bug" for bug in sorted(self.bugs))]
        )

    @property
    def racy(self) -> bool:
        """Whether one of its bugs is a race."""
        return bool(self.bugs & RACES)

    @cached_property
    def kernel(self) -> Any:
        """The kernel."""
        return kernel_of(f"<indigo {self.name}>", source(self))

    @property
    def configuration(self) -> tuple[int, int]:
        """Blocks, and threads of a block: enough for all vertices, or fewer if the threads persist."""
        few = "persistent" in self.options
        return {"block": (4 if few else VERTICES, 64), "warp": (2, 64) if few else (VERTICES // 2, 64)}.get(
            self.threads, (2, 4) if few else (2, VERTICES)
        )

    def arguments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
        """The graph's rows and neighbours, the two arrays of values, and the number of vertices."""
        starts, neighbours = graph()
        size = len(neighbours)
        first = np.zeros(size, np.int32)
        if self.pattern == "path":
            first = np.maximum(np.arange(VERTICES, dtype=np.int32) - 2, 0)  # each vertex's parent
        elif self.pattern == "push":
            first += 1000
        second = np.arange(1, size + 1, dtype=np.int32)
        if self.pattern == "populate":
            second[0] = 0
        return starts, neighbours, first, second, VERTICES


def graph() -> tuple[np.ndarray, np.ndarray]:
    """Return a graph of VERTICES vertices: where each one's neighbours begin, and all neighbours, ascending.

    The first and the last have none: there an index without its bound leaves the array. Vertices below 8 have a larger
    one as their first neighbour, and vertices share neighbours.
    """
    random = np.random.default_rng(0)
    lists = []
    for vertex in range(VERTICES):
        lowest = 9 if vertex < 8 else 0
        others = random.choice(np.arange(lowest + 1, VERTICES), DEGREE - 1, replace=False)
        lists.append([] if vertex in (0, VERTICES - 1) else sorted({lowest, *map(int, others)} - {vertex}))
    starts = np.cumsum([0, *map(len, lists)])
    return starts.astype(np.int32), np.array([one for some in lists for one in some], np.int32)


def variants() -> Iterator[Variant]:
    """Yield all 590 combinations."""
    for pattern in ("conditional_edge", "conditional_vertex", "populate", "pull", "push"):
        bugs = _choices(*{"conditional_edge": ("atomic", "guard"), "pull": ()}.get(pattern, ("atomic",)))
        condition = _choices() if pattern in ("conditional_vertex", "populate") else _choices("cond")
        for options, cond, wrong, bound in product(_choices("persistent", "last"), condition, bugs, _choices("bounds")):
            yield Variant(pattern, "single", options | cond, wrong | bound)
        # A thread for each vertex: Indigo's persistent threads have no bound that could be missing.
        starts = [((), ()), (("persistent",), ()), ((), ("bounds",))]
        for (option, bound), walk, cond, wrong in product(starts, _choices("reverse", "break"), condition, bugs):
            yield Variant(pattern, "thread", walk | cond | frozenset(option), wrong | frozenset(bound))
        for options, cond, wrong in product(_choices("persistent", "reverse"), condition, bugs):
            yield Variant(pattern, "warp", options | cond, wrong)
            yield Variant(pattern, "block", options | cond, wrong)
            if pattern in ("conditional_edge", "pull"):  # which add up in shared memory
                yield Variant(pattern, "block", options | cond | {"shfl"}, wrong)
                yield Variant(pattern, "block", options | cond, wrong | {"sync"})
    for options in _choices("persistent"):
        yield Variant("path", "thread", options, frozenset())
        yield Variant("path", "thread", options, frozenset(("race",)))
        yield Variant("path", "thread", options | {"traverse"}, frozenset())


def _choices(*names: str) -> list[frozenset[str]]:
    """Return every set of some of `names`."""
    return [frozenset(filter(None, some)) for some in product(*((name, "") for name in names))]


# --- the kernels' text -----------------------------------------------------------------------------------------------


def source(variant: Variant) -> str:
    """Return the text of a variant's kernel."""
    if variant.pattern == "path":
        body = _path(variant)
    elif variant.threads == "single":
        body = _one_neighbour(variant)
    elif variant.threads == "thread" or variant.pattern in ("populate", "push"):
        body = _each_neighbour(variant)
    else:
        body = {"conditional_vertex": _counted, "conditional_edge": _reduced, "pull": _reduced}[variant.pattern](
            variant
        )
    lines = ["def kernel(nindex, nlist, data1, data2, numv):", *_indented(_of_a_vertex(variant, body))]
    return "\n".join(lines) + "\n"


def _indented(lines: list[str], depth: int = 1) -> list[str]:
    return ["    " * depth + line for line in lines]


def _under(head: str, lines: list[str]) -> list[str]:
    """Return `lines` under a line that begins a block; as they are if there is none."""
    return [head, *_indented(lines)] if head else lines


def _of_a_vertex(variant: Variant, body: list[str]) -> list[str]:
    """Return the body in the loop over vertices, or for the one vertex of these threads."""
    first, step = {
        "warp": ("cuda.grid(1) // 32", "cuda.gridsize(1) // 32"),
        "block": ("cuda.blockIdx.x", "cuda.gridDim.x"),
    }.get(variant.threads, ("cuda.grid(1)", "cuda.gridsize(1)"))
    before = ["lane = cuda.threadIdx.x % 32"] if variant.threads != "thread" else []
    if variant.threads == "block":
        before += ["tid = cuda.threadIdx.x", "warp = tid // 32"]
        if variant.pattern in ("conditional_edge", "pull"):
            before += ["carry = cuda.shared.array(64, int32)", "carry[tid] = 0"]
    if variant.pattern != "path":
        body = ["beg = nindex[i]", "end = nindex[i + 1]", *body]
    if variant.threads == "block" and variant.pattern in ("conditional_edge", "pull"):
        body = ["cuda.syncthreads()", *body]
    if "persistent" in variant.options:
        return [*before, *_under(f"for i in range({first}, numv, {step}):", body)]
    unbounded = "bounds" in variant.bugs and variant.threads == "thread"
    return [*before, f"i = {first}", *_under("" if unbounded else "if i < numv:", body)]


def _one_neighbour(variant: Variant) -> list[str]:
    place = "end - 1" if "last" in variant.options else "beg"
    work = [f"j = {place}", "nei = nlist[j]", *_where_wanted(variant, _update(variant))]
    return _under("" if "bounds" in variant.bugs else "if beg < end:", work)


def _each_neighbour(variant: Variant) -> list[str]:
    work = [*_update(variant), *(["break"] if "break" in variant.options else [])]
    return _under(_walk(variant), ["nei = nlist[j]", *_where_wanted(variant, work)])


def _walk(variant: Variant) -> str:
    """Return the head of the loop over the neighbours of a vertex that these threads share."""
    offset, step = {"warp": ("lane", "32"), "block": ("tid", "cuda.blockDim.x")}.get(variant.threads, ("0", "1"))
    if "reverse" in variant.options:
        return f"for j in range(end - 1 - {offset}, beg - 1, -{step}):"
    return f"for j in range(beg + {offset}, end, {step}):"


def _where_wanted(variant: Variant, work: list[str]) -> list[str]:
    """Return the work under its condition; some patterns always have one."""
    always = variant.pattern in ("conditional_vertex", "populate")
    return _under("if i < nei:" if always or "cond" in variant.options else "", work)


def _update(variant: Variant, value: str = "data2[nei]") -> list[str]:
    """Return what a thread does with `value`, with an atomic or without."""
    atomic = "atomic" not in variant.bugs
    if variant.pattern == "conditional_edge":
        one = f"cuda.atomic.max(data1, 0, {value})" if atomic else f"data1[0] = max(data1[0], {value})"
        return _under(f"if data1[0] < {value}:" if "guard" in variant.bugs else "", [one])
    if variant.pattern == "conditional_vertex":
        count = "1" if value == "data2[nei]" else value
        return [f"cuda.atomic.add(data1, 0, {count})" if atomic else f"data1[0] += {count}"]
    if variant.pattern == "populate":
        return [
            *(["pos = cuda.atomic.add(data2, 0, 1)"] if atomic else ["pos = data2[0]", "data2[0] = pos + 1"]),
            "data1[pos] = j",
        ]
    if variant.pattern == "push":
        return ["cuda.atomic.min(data1, nei, data2[i])" if atomic else "data1[nei] = min(data1[nei], data2[i])"]
    return [f"data1[i] += {value}"]


def _counted(variant: Variant) -> list[str]:
    """Return a count of neighbours by votes of the warp or the block, added by one thread."""
    warp = variant.threads == "warp"
    offset, step = ("lane", "32") if warp else ("tid", "cuda.blockDim.x")
    reverse = "reverse" in variant.options
    inside = "j >= beg" if reverse else "j < end"
    some = f"cuda.any_sync(FULL, {inside})" if warp else f"cuda.syncthreads_or(1 if {inside} else 0)"
    count = "cuda.popc(cuda.ballot_sync(FULL, i < nei))" if warp else "cuda.syncthreads_count(1 if i < nei else 0)"
    return [
        "total = 0",
        f"j = end - 1 - {offset}" if reverse else f"j = beg + {offset}",
        *_under(
            f"while {some}:",
            [
                "nei = i",
                *_under(f"if {inside}:", ["nei = nlist[j]"]),
                f"total += {count}",
                f"j {'-' if reverse else '+'}= {step}",
            ],
        ),
        *_under(f"if {offset} == 0:", _update(variant, "total")),
    ]


def _reduced(variant: Variant) -> list[str]:
    """Return a maximum or a sum over neighbours, through shuffles or shared memory, used by one thread."""
    edge = variant.pattern == "conditional_edge"
    join = "value = max(value, {})" if edge else "value += {}"
    gather = [
        "value = 0",
        *_under(_walk(variant), ["nei = nlist[j]", *_where_wanted(variant, [join.format("data2[nei]")])]),
    ]
    if edge:
        within_warp = [join.format(f"cuda.shfl_xor_sync(FULL, value, {width})") for width in (1, 2, 4, 8, 16)]
        last = 0
    else:  # a scan, whose last lane has the sum
        within_warp = [
            f"other = cuda.shfl_up_sync(FULL, value, {width})\nif lane >= {width}: value += other"
            for width in (1, 2, 4, 8, 16)
        ]
        within_warp = [line for pair in within_warp for line in pair.split("\n")]
        last = 31
    if variant.threads == "warp":
        return [*gather, *within_warp, *_under(f"if lane == {last}:", _update(variant, "value"))]
    if "shfl" in variant.options:
        return [
            *gather,
            *within_warp,
            *_under(f"if lane == {last}:", ["carry[warp] = value"]),
            "cuda.syncthreads()",
            *_under(
                "if warp == 0:",
                ["value = carry[lane]", *within_warp, *_under(f"if lane == {last}:", _update(variant, "value"))],
            ),
        ]
    joined = "max(carry[tid], carry[tid + stride])" if edge else "carry[tid] + carry[tid + stride]"
    return [
        *gather,
        "carry[tid] = value",
        *([] if "sync" in variant.bugs else ["cuda.syncthreads()"]),
        "stride = cuda.blockDim.x // 2",
        *_under(
            "while stride > 0:",
            [*_under("if tid < stride:", [f"carry[tid] = {joined}"]), "cuda.syncthreads()", "stride //= 2"],
        ),
        *_under("if tid == 0:", ["value = carry[0]", *_update(variant, "value")]),
    ]


def _path(variant: Variant) -> list[str]:
    """Return the walk from a vertex to its root, with the path made shorter or only walked."""
    plain = "race" in variant.bugs or "traverse" in variant.options
    read = "data1[v]" if plain else "cuda.atomic.add(data1, v, 0)"
    write = (
        "data2[i] = v"
        if "traverse" in variant.options
        else "data1[i] = v"
        if plain
        else "cuda.atomic.exch(data1, i, v)"
    )
    return ["v = i", *_under(f"while v > {read}:", [f"v = {read}"]), write]
