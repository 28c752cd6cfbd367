"""The times of other layouts than the tables', for norms with extras: python -m hardware.variants [KIND …]

KIND is a key of KINDS; without one, all. Kernels are compiled first, by all processors into the cache on disk. Times
are medians with a cold L2, as fractions of a copy that moves as many bytes. --launch: only launch the tables' own
layouts, for a profiler.
"""

import argparse
import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from hardware.add_norm import Operands, copy_time, queries
from hardware.sweep import take
from normlab.host import add_norm, gated_norm, modulated_norm
from normlab.kernels.backward.pipelined.layout import PipelineLayout
from normlab.kernels.forward.layouts import RegisterLayout
from normlab.stages.vector import WARP, ThreadMap, map_threads

EPS = 1e-6
MOST_SHARED = 227 * 1024  # bytes per block of an H100
PARAMETER_BYTES = 8  # of shared memory per column, at most: gamma and 1 / gamma in float32


class Kind(NamedTuple):
    """A norm to be timed. matrices: that it reads and writes. third: the pipeline has stages for a third array."""

    make: Callable[[], Callable[[], Any]]
    rows: int
    columns: int
    matrices: int
    third: bool = False
    forward: bool = False
    threads: tuple[int, ...] = (128, 256, 512)
    least: float = 0.5  # of a block's shared memory, for the pipeline
    groups: tuple[int, ...] = (1, 2, 4)  # rows per block
    most: int = 5  # vectors per thread


def of_a_sum(n1: int, n2: int, rms: bool, recompute: bool = False) -> Callable[[], Any]:
    """Return the backward of a norm of x + residual."""
    one = Operands(n1, n2, rms)
    take(None)
    output, total, mean, invvar = one.forward()
    return lambda: one.backward(output if recompute else total, mean, invvar, recompute)


def of_heads(columns: int, heads: int, others: int) -> Callable[[], Any]:
    """Return the backward of queries' norms in a fused tensor."""
    x, grad, weight = queries(8192, heads, others, columns)
    take(None)
    _, invvar = add_norm.head_rms_norm_forward(x, weight)
    return lambda: add_norm.head_rms_norm_backward(grad, x, invvar, weight)


def of_a_gate(n1: int, n2: int, before: bool = True, recompute: bool = False) -> Callable[[], Any]:
    """Return the backward of a gated norm."""
    import torch

    x, gate, grad = (torch.randn(n1, n2, device="cuda").bfloat16() for _ in range(3))
    weight = torch.randn(n2, device="cuda").bfloat16()
    take(None)
    output, invvar = gated_norm.gated_rms_norm_forward(x, gate, weight, norm_before_gate=before)
    given = grad, output if recompute else x, gate, invvar, weight
    how = {"norm_before_gate": before, "memory_efficient": recompute}
    return lambda: gated_norm.gated_rms_norm_backward(*given, **how)


def of_a_gated_forward(n1: int, n2: int) -> Callable[[], Any]:
    """Return the forward of a gated norm."""
    import torch

    x, gate = (torch.randn(n1, n2, device="cuda").bfloat16() for _ in range(2))
    weight = torch.randn(n2, device="cuda").bfloat16()
    take(None)
    return lambda: gated_norm.gated_rms_norm_forward(x, gate, weight)


def of_samples(samples: int, n1: int, n2: int, forward: bool) -> Callable[[], Any]:
    """Return one pass of a modulated norm."""
    import torch

    x, grad = (torch.randn(samples, n1, n2, device="cuda").bfloat16() for _ in range(2))
    scale, shift = (torch.randn(samples, n2, device="cuda").bfloat16() for _ in range(2))
    take(None)
    if forward:
        return lambda: modulated_norm.modulated_layer_norm_forward(x, scale, shift, eps=EPS)
    _, mean, invvar = modulated_norm.modulated_layer_norm_forward(x, scale, shift, eps=EPS)
    return lambda: modulated_norm.modulated_layer_norm_backward(grad, x, mean, invvar, scale, shift)


# Columns of norms of a sum, and the threads per row to be tried.
SUMS = {1024: (32, 64, 128), 2048: (64, 128, 256), 3072: (96, 128, 192), 4096: (128, 256, 512), 5120: (160, 320, 640),
        8192: (128, 256, 512), 16384: (128, 256, 512)}  # fmt: skip
GATES = {2048: (64, 128, 256), 4096: (128, 256, 512)}


def _rows(columns: int) -> int:
    return 8192 if columns <= 4096 else 2**25 // columns


KINDS = (
    {
        f"{norm} {columns}{' output' * recompute}": Kind(
            partial(of_a_sum, _rows(columns), columns, norm == "rms", recompute),
            *(_rows(columns), columns, 4, True),
            threads=threads,
            groups=(4, 8) if columns == 1024 else (1, 2, 4),
            least=0.3 if columns == 1024 else 0.5,
        )
        for columns, threads in SUMS.items()
        for norm, recompute in itertools.product(("rms", "layer"), (False, True))
    }
    | {
        f"gated{' x' * (not before)} {columns}{' output' * recompute}": Kind(
            partial(of_a_gate, 8192, columns, before, recompute), 8192, columns, 5, True, threads=threads, least=0.3
        )
        for columns, threads in GATES.items()
        for before, recompute in ((True, False), (True, True), (False, False))
    }
    | {
        # 132 multiprocessors take 8,192 rows, two at a time, in 31.03 turns, and 8,448 rows in 32.
        "layer 8448": Kind(lambda: of_a_sum(8448, 4096, False), 8448, 4096, 4, True, groups=(1, 2, 3)),
        "heads 64": Kind(lambda: of_heads(64, 16, 16), 8192 * 16, 64, 3, threads=(4, 8)),
        "modulated": Kind(
            lambda: of_samples(64, 256, 1152, False), 64 * 256, 1152, 3, threads=(32, 64, 96, 160), least=0.2
        ),
        "modulated forward": Kind(
            lambda: of_samples(64, 256, 1152, True), 64 * 256, 1152, 2, forward=True, threads=(16, 32, 64, 96), most=9
        ),
        "gated 128": Kind(lambda: of_a_gate(8192 * 32, 128), 8192 * 32, 128, 5, True, threads=(8, 16)),
        "gated 128 forward": Kind(
            lambda: of_a_gated_forward(8192 * 32, 128), 8192 * 32, 128, 3, forward=True, threads=(4, 8, 16)
        ),
    }
)


def layouts_of(kind: Kind) -> Iterator[Any]:
    """The layouts to be tried: those that fill a multiprocessor's shared memory with few or many threads."""
    for threads, blocks in itertools.product(kind.threads, (1, 2, 4) if kind.columns > 4096 else (1,)):
        thread_map = map_threads(kind.columns // blocks, 8, threads)
        if thread_map.vectors > kind.most:
            continue
        if kind.forward:
            for rows, held in itertools.product((1, 2, 4, 8, 16, 32), (1, 1536)):
                if 128 <= threads * rows <= 512:
                    yield RegisterLayout(thread_map, rows, max(1, held // (threads * rows)))
            continue
        yield from _pipelines(kind, thread_map, blocks)


def _pipelines(kind: Kind, thread_map: ThreadMap, blocks: int) -> Iterator[PipelineLayout]:
    few = thread_map.threads < WARP
    for rows, stages, prefetch in itertools.product((8, 16, 32, 64) if few else kind.groups, (2, 3, 4), (0, 1)):
        layout = PipelineLayout(thread_map, rows, blocks, stages, prefetch, 2, 2, 2 * kind.third)
        shared = layout.shared_bytes(PARAMETER_BYTES) + layout.exchange_bytes
        enough = few or (shared > kind.least * MOST_SHARED and layout.threads >= 128)
        if enough and shared <= MOST_SHARED and layout.threads <= 512 and layout.in_flight > 0:
            yield layout


def forget() -> None:
    """Forget cached launches, which have the layout of their first call."""
    add_norm.replay._cached.clear()


def compile_some(name: str, layouts: list[Any]) -> None:
    """Compile kernels into the cache on disk, by launching them once."""
    call = KINDS[name].make()
    for layout in layouts:
        take(layout)
        forget()
        call()


def times(name: str, layouts: list[Any]) -> None:
    """Print a kind's fastest layouts, and the tables' own."""
    from normlab.measure.timing import EventTimer

    timer, kind = EventTimer(), KINDS[name]
    copy = copy_time(timer, kind.rows * kind.columns, kind.matrices)
    call, found = kind.make(), []
    for layout in (None, *layouts):
        take(layout)
        forget()
        found.append((copy / timer(call).median, layout))
    take(None)
    own, others = found[0], sorted(found[1:], reverse=True, key=lambda one: one[0])
    for fraction, layout in (own, *others[:5]):
        said = "the tables' own" if layout is None else tuple(layout)
        print(f"{name:18} {fraction:.3f} of a copy, {said}", flush=True)


def main() -> None:
    """Compile, then time."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("kinds", nargs="*", default=list(KINDS), help="as above")
    asked.add_argument("--launch", action="store_true")
    asked.add_argument("--own", action="store_true", help="time the tables' own layouts alone")
    options = asked.parse_args()
    names = options.kinds
    if options.launch:
        for name in names:
            KINDS[name].make()()
        return
    some = {name: [] if options.own else list(layouts_of(KINDS[name])) for name in names}
    processes = os.cpu_count() or 1
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(compile_some, name, [one]) for name in names for one in (None, *some[name])]
        for job in jobs:
            job.result()
    for name in names:
        times(name, some[name])


if __name__ == "__main__":
    main()
