"""What the entries of the fast steps' tables are chosen by: every layout that fits, timed on a GPU beside a copy.

    PYTHONPATH=tests python -m hardware.sweep backward --n2 4096,16384 --dtype bfloat16 --norm layer --saved output
    PYTHONPATH=tests python -m hardware.sweep forward --n2 65536 --dtype bfloat16

Kernels are compiled by all processors before the GPU is touched, and kept in $NORMLAB_CACHE_DIR. A layout whose result
differs from the step's own by more than rounding is shown as wrong. Few rows are timed with --log2: the fastest layout
of many rows may be slow with few, and on one card of the two, so an entry is chosen by all of them.
"""

import argparse
import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np

from normlab.bench.problem import EPS, Data, Problem
from normlab.engine import block_shared_bytes
from normlab.engine.compile import cubins
from normlab.host.arrays import FLOATS
from normlab.kernels import BackwardProblem, ForwardProblem
from normlab.kernels.backward import step_3_pipelined
from normlab.kernels.backward.layouts import MAX_ELEMENTS
from normlab.kernels.backward.pipelined.kind import Kind
from normlab.kernels.backward.pipelined.layout import PipelineLayout
from normlab.kernels.forward import layouts, step_7_clusters
from normlab.kernels.forward.layouts import ClusterLayout, RegisterLayout
from normlab.kernels.plan import Chosen
from normlab.stages.vector import ThreadMap, map_threads

CAPABILITY = (9, 0)
THREADS, ROWS, STAGES, PREFETCH = (32, 64, 96, 128, 160, 256, 512), (1, 2, 3, 4, 8), (2, 3, 4), (0, 1)
CAPACITY = block_shared_bytes(CAPABILITY)


ELEMENTS = 2**27  # of x, of a task that does not say how many rows it has


class Task(NamedTuple):
    """One layout of one problem; n1: its rows, None for as many as make up ELEMENTS."""

    direction: str
    norm: str
    dtype: str
    saved: str
    n2: int
    layout: Any
    n1: int | None = None

    @property
    def problem(self) -> Problem:
        return Problem(self.norm, self.direction, self.dtype, self.n1 or max(1, ELEMENTS // self.n2), self.n2)

    @property
    def memory_efficient(self) -> bool:
        return self.saved == "output"


def slices(n2: int, width: int, threads: int) -> Iterator[tuple[ThreadMap, int]]:
    """A row dealt to so many threads in each of 1, 2, 4, 8 or 16 blocks, where that comes out even enough."""
    for blocks in (1, 2, 4, 8, 16):
        thread_map = map_threads(width * -(-n2 // (width * blocks)), width, threads)
        if blocks * thread_map.columns >= n2 and (blocks - 1) * thread_map.columns < n2:
            yield thread_map._replace(whole=blocks * thread_map.columns == n2), blocks


def backward_layouts(n2: int, itemsize: int, kind: Kind) -> Iterator[PipelineLayout]:
    """Those that keep a GPU busy and fit into its blocks."""
    for threads, rows, stages, prefetch in itertools.product(THREADS, ROWS, STAGES, PREFETCH):
        for thread_map, blocks in slices(n2, 16 // itemsize, threads):
            layout = PipelineLayout(thread_map, rows, blocks, stages, prefetch, itemsize, itemsize)
            busy = 128 <= layout.threads <= 512 and 16 <= thread_map.elements <= MAX_ELEMENTS
            bytes_needed = layout.shared_bytes(kind.parameter_bytes) + layout.exchange_bytes
            if busy and layout.in_flight > 0 and CAPACITY // 3 <= bytes_needed <= CAPACITY:
                yield layout


def forward_plans(n2: int, itemsize: int) -> Iterator[Any]:
    """Rows in registers, several a block; and slices in shared memory, of rows for which that is not enough."""
    for threads, rows in itertools.product((*THREADS, 192, 224, 320, 384, 640, 1024), (1, 2, 4, 8, 16)):
        thread_map = map_threads(n2, 16 // itemsize, threads)
        if threads * rows <= 1024 and 8 <= thread_map.elements <= 64 and thread_map.elements * threads * rows <= 2**15:
            blocks = {1, 1024 // (threads * rows), 1536 // (threads * rows), 2048 // (threads * rows)} - {0}
            for resident, early in itertools.product(blocks, (False, True)):
                yield RegisterLayout(thread_map, rows, resident, early=early)
    for threads in (128, 256, 512, 1024):
        for thread_map, blocks in slices(n2, 16 // itemsize, threads):
            long = ClusterLayout(thread_map, blocks, itemsize)
            if n2 > 2**14 and long.shared_bytes + layouts.STATIC_BYTES <= CAPACITY and 4 <= thread_map.vectors <= 16:
                yield long


def tasks(options: argparse.Namespace) -> list[Task]:
    """All of them."""
    found = []
    itemsize = FLOATS[options.dtype].itemsize
    rms = options.norm == "rms"
    kind = Kind(rms, options.saved == "output", True, not rms, itemsize == 2, 16 // itemsize)
    sizes = [2 ** int(power) for power in options.log2.split(",")]
    for n2 in map(int, options.n2.split(",")):
        backward = options.direction == "backward"
        layouts = list(backward_layouts(n2, itemsize, kind) if backward else forward_plans(n2, itemsize))
        rest = options.direction, options.norm, options.dtype, options.saved, n2
        found += [Task(*rest, layout, max(1, elements // n2)) for elements in sizes for layout in layouts]
    return found


OWN = {
    (step_3_pipelined, "layout_for"): step_3_pipelined.layout_for,
    (layouts, "rows_for"): layouts.rows_for,
    (layouts, "slices_for"): layouts.slices_for,
}


def take(layout: Any) -> None:
    """Let its step use a layout, whatever it is asked for; None: its own."""
    for (module, name), own in OWN.items():
        setattr(module, name, own)
    if isinstance(layout, PipelineLayout):
        step_3_pipelined.layout_for = lambda *how: Chosen(layout, "the sweep")
    elif isinstance(layout, RegisterLayout):
        layouts.rows_for = lambda *how: Chosen(layout, "the sweep")
    elif layout is not None:
        layouts.rows_for = lambda *how: None
        layouts.slices_for = lambda *how: Chosen(layout, "the sweep")


class Scratch:
    """Memory for partial sums, without contents."""

    empty = zeros = staticmethod(np.empty)


def compile_ahead(task: Task) -> None:
    """Put a layout's kernels where a launch will find them."""
    rms, dtype, n2 = task.norm == "rms", FLOATS[task.dtype], task.n2
    n1 = task.n1 or 10_000  # few rows have kernels of their own
    x, weight = np.empty((n1, n2), dtype), np.empty(n2, dtype)
    bias, statistics = None if rms else weight, np.empty(n1, np.float32)

    def launch(kernel: Any, grid: Any, block: Any, *arguments: Any, **how: Any) -> None:
        kinds = [
            None if one is None else (one.dtype, one.ndim, "C") if np.ndim(one) else np.asarray(one).dtype
            for one in arguments
        ]
        cubins.cubin(kernel, tuple(kinds), CAPABILITY)

    take(task.layout)
    mean = None if rms else statistics
    if task.direction == "forward":
        forward = ForwardProblem(x, weight, bias, np.float32(EPS), x, mean, statistics)
        step_7_clusters.STEP.run(launch, Scratch, forward)
        return
    mean = None if task.memory_efficient else mean
    problem = BackwardProblem(
        x, x, mean, statistics, weight, bias, np.float32(EPS), rms, task.memory_efficient, x, weight, bias
    )
    step_3_pipelined.STEP.run(launch, Scratch, problem)


def calls(task: Task, data: Data) -> Any:
    """The call to time, and its results."""
    from normlab.host import norms

    x, n2, weight, bias, eps = data.x, task.n2, data.weight, data.bias, EPS
    if task.direction == "forward":
        if task.norm == "rms":
            return lambda: norms.rms_norm_forward(x, n2, weight, eps=eps, step="clusters")
        return lambda: norms.layer_norm_forward(x, n2, weight, bias, eps=eps, step="clusters")
    me, dy = task.memory_efficient, data.grad_output
    if task.norm == "rms":
        output, invvar = norms.rms_norm_forward(x, n2, weight, eps=eps)
        saved = output if me else x
        return lambda: norms.rms_norm_backward(
            dy, saved, invvar, n2, weight, eps=eps, memory_efficient=me, step="pipelined"
        )
    output, mean, invvar = norms.layer_norm_forward(x, n2, weight, bias, eps=eps)
    saved = output if me else x
    return lambda: norms.layer_norm_backward(
        dy, saved, mean, invvar, n2, weight, bias, eps=eps, memory_efficient=me, step="pipelined"
    )


def same(results: tuple, others: tuple) -> bool:
    """Do two runs agree up to rounding?"""
    pairs = [(a.float(), b.float()) for a, b in zip(results, others, strict=True) if a is not None]
    return all(bool((a - b).abs().max() <= 0.02 * b.abs().max()) for a, b in pairs)


def time_all(wanted: list[Task]) -> None:
    """Print, for each problem, its layouts, the fastest first."""
    import torch

    from normlab.host import replay
    from normlab.measure.timing import EventTimer

    timer = EventTimer()
    for (n2, n1), group in itertools.groupby(wanted, lambda task: (task.n2, task.n1)):
        some = list(group)
        first = some[0]
        problem = first.problem
        data = problem.draw("cuda")
        copy = timer(partial(torch.empty_like(data.x).copy_, data.x)).median
        ideal = copy * problem.bytes / (2 * problem.array_bytes)
        take(None)
        replay._cached.clear()
        call = calls(first, data)
        want = call()
        found = [(ideal / timer(call).median, "the step's own", True)]
        for task in some:
            take(task.layout)
            replay._cached.clear()
            try:
                right = same(call(), want)
                found.append((ideal / timer(call).median, task.layout, right))
            except Exception as error:  # a launch that the GPU refuses is a result, too
                found.append((0.0, f"{task.layout}: {error}", False))
        print(f"{first.direction} {first.norm} {first.dtype} {n1} x {n2}, saved {first.saved}: fraction of a copy")
        for fraction, layout, right in sorted(found, key=lambda one: -one[0]):
            print(f"  {fraction:.3f}{'' if right else ' WRONG'}  {layout}")


def compile_all(wanted: list[Task]) -> None:
    """On all processors but one."""
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 1), mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_ahead, wanted))


def main() -> None:
    """Compile, then time."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("direction", choices=["forward", "backward"])
    parser.add_argument("--n2", default="4096")
    parser.add_argument("--dtype", default="bfloat16", choices=["float16", "bfloat16", "float32"])
    parser.add_argument("--norm", default="layer", choices=["layer", "rms"])
    parser.add_argument("--saved", default="input", choices=["input", "output"])
    parser.add_argument("--log2", default="27", help="elements of x, as powers of two: 20,22,24,27 for few rows, too")
    wanted = tasks(parser.parse_args())
    compile_all(wanted)
    time_all(wanted)


if __name__ == "__main__":
    main()
