"""Norms of x + residual, of heads, gated and modulated on a GPU: python -m hardware.add_norm [PART …]

    check         both norms of a sum at twenty shapes, and heads that lie apart, held to their bounds
    heads         the times of queries' norms in a fused tensor
    peers         the times beside torch's x + residual and then its norm, that by torch.compile, and Liger's kernel
    layouts       the times of other layouts than the tables'
    check_others  gated and modulated norms held to their bounds
    others        their times beside torch's operations and torch.compile (`hardware.gated_norm`)

Times are medians with a cold L2 (`normlab.measure.timing`), as fractions of a copy that moves as many bytes. Norms of a
sum move two matrices in and two out, forward and backward. Without an argument: check, heads and peers.
"""

import argparse
import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from add_norms import examine_add_backward, fixed_case

from hardware import gated_norm
from hardware.sweep import take
from normlab import rms_norm_backward, rms_norm_forward
from normlab.engine import using
from normlab.host import add_norm
from normlab.kernels.backward.pipelined.layout import PipelineLayout
from normlab.kernels.forward.layouts import RegisterLayout
from normlab.stages.vector import map_threads

CHECKED = [
    *itertools.product([(67, 64), (5, 333), (40, 1024), (9, 4096), (3, 8192)], ("bfloat16", "float32"), (None,)),
    *itertools.product([(5, 77), (21, 520), (300, 768), (2, 16384)], ("float16",), (None,)),
    *itertools.product([(7, 2048), (33, 640)], ("bfloat16",), ("float32",)),
    *itertools.product([(7, 2048), (3, 20480)], ("float32",), ("bfloat16",)),
    ((3, 66_000), "bfloat16", None),
    ((4, 100), "float64", None),
]
HEADS = [(32, 8, 128), (16, 16, 64), (8, 4, 256)]  # heads of the query, of key and value together, head_dim
TOKENS = 8192
TIMED = [(8192, 4096), (8192, 2048), (8192, 1024), (4096, 8192)]
COMPILED = TIMED[:1]  # the compiler takes ten seconds for a shape
EPS = 1e-6


def check(shape: tuple[int, int], dtype: str, parameters: str | None, rms: bool) -> None:
    """Hold both paths of a norm to their bounds; raises AssertionError."""
    with using("gpu"):
        for memory_efficient in (False, True):
            examine_add_backward(fixed_case(*shape, dtype, rms, float(rms), parameters), memory_efficient)


def check_heads(heads: int, others: int, columns: int) -> None:
    """Hold heads that lie apart to the bits of the plain norm of contiguous ones; raises AssertionError."""
    import torch

    x, grad, weight = queries(67, heads, others, columns)
    output, invvar = add_norm.head_rms_norm_forward(x, weight)
    results = output, invvar, *add_norm.head_rms_norm_backward(grad, x, invvar, weight)
    want, scale = rms_norm_forward(x.contiguous(), columns, weight, eps=EPS)
    plain = want, scale, *rms_norm_backward(grad, x.contiguous(), scale, columns, weight, eps=EPS)
    assert all(torch.equal(got, there) for got, there in zip(results, plain, strict=True)), (heads, others, columns)


def queries(tokens: int, heads: int, others: int, columns: int) -> tuple:
    """Queries in a fused tensor of bfloat16, a gradient and a weight."""
    import torch

    fused = torch.randn(tokens, (heads + others) * columns, device="cuda").bfloat16()
    x = fused[:, : heads * columns].view(tokens, heads, columns)
    return x, torch.randn_like(x, memory_format=torch.contiguous_format), torch.randn(columns, device="cuda").bfloat16()


def head_times() -> None:
    """Print the times of queries' norms, as fractions of a copy of as many bytes."""
    import torch

    from normlab.measure.timing import EventTimer

    timer = EventTimer()
    for heads, others, columns in HEADS:
        x, grad, weight = queries(TOKENS, heads, others, columns)
        output, invvar = add_norm.head_rms_norm_forward(x, weight)
        target = torch.empty_like(output)
        copy = timer(lambda output=output, target=target: target.copy_(output)).median
        calls = {
            "forward": (2, lambda x=x, weight=weight: add_norm.head_rms_norm_forward(x, weight)),
            "backward": (3, lambda *given, of=(grad, x, invvar, weight): add_norm.head_rms_norm_backward(*of)),
            "forward, torch": (
                2,
                lambda x=x, weight=weight: torch.nn.functional.rms_norm(x, x.shape[-1:], weight, EPS),
            ),
        }
        for name, (matrices, call) in calls.items():
            took = timer(call).median
            fraction = matrices / 2 * copy / took
            print(
                f"{name:14} {heads:3} heads of {columns:<4} {1e6 * took:8.1f} us {fraction:.3f} of a copy", flush=True
            )


class Operands:
    """What a norm of n1 rows takes, in bfloat16 on the GPU."""

    def __init__(self, n1: int, n2: int, rms: bool):
        import torch

        def rows() -> Any:
            return torch.randn(n1, n2, device="cuda").bfloat16()

        self.x, self.residual, self.grad_output, self.grad_residual = (rows() for _ in range(4))
        self.weight, bias = (torch.randn(n2, device="cuda").bfloat16() for _ in range(2))
        self.bias, self.rms = None if rms else bias, rms

    def forward(self) -> tuple:
        """normlab's forward."""
        return add_norm.forward(self.x, self.residual, self.weight, self.bias, EPS, self.rms, 0.0)

    def backward(self, saved: Any, mean: Any, invvar: Any, memory_efficient: bool = False) -> tuple:
        """normlab's backward."""
        given = self.grad_output, self.grad_residual, saved, mean, invvar, self.weight, self.bias
        return add_norm.backward(add_norm.AddNormBackward(*given, EPS, self.rms, 0.0, memory_efficient, None))

    def plain(self, x: Any, residual: Any, weight: Any, bias: Any) -> tuple:
        """torch's forward."""
        from torch.nn.functional import layer_norm, rms_norm

        total, shape = x + residual, x.shape[-1:]
        return (rms_norm(total, shape, weight, EPS) if self.rms else layer_norm(total, shape, weight, bias, EPS)), total


def contenders(one: Operands, compiled: bool) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """(direction, name, call) of all."""
    import torch

    output, total, mean, invvar = one.forward()
    yield "forward", "normlab", one.forward
    yield "backward", "normlab", lambda: one.backward(total, mean, invvar)
    yield "backward", "normlab output", lambda: one.backward(output, mean, invvar, True)
    parameters = [one.weight] if one.rms else [one.weight, one.bias]
    leaves = [tensor.clone().requires_grad_() for tensor in (one.x, one.residual, *parameters)]
    given = [*leaves, *[None] * one.rms]
    grads = one.grad_output, one.grad_residual
    functions = {"torch": one.plain}
    if compiled:
        functions["torch.compile"] = torch.compile(one.plain, fullgraph=True, dynamic=False)
    for name, function in functions.items():
        with torch.no_grad():
            function(one.x, one.residual, one.weight, one.bias)
        yield "forward", name, lambda function=function: no_grad(function, one)
        results = function(*given)
        yield "backward", name, lambda results=results: torch.autograd.grad(results, leaves, grads, retain_graph=True)
    if one.rms:
        yield from ligers(one)


def no_grad(function: Callable, one: Operands) -> Any:
    """A forward alone."""
    import torch

    with torch.no_grad():
        return function(one.x, one.residual, one.weight, one.bias)


def ligers(one: Operands) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Liger's fused kernel, if it is installed."""
    try:
        from liger_kernel.ops.fused_add_rms_norm import fused_add_rms_norm_backward, fused_add_rms_norm_forward
    except ImportError:
        return
    _, total, scale, *settings = fused_add_rms_norm_forward(one.x, one.residual, one.weight, EPS, 0.0, "llama")
    block, warps, stages, mode = settings
    yield "forward", "Liger", lambda: fused_add_rms_norm_forward(one.x, one.residual, one.weight, EPS, 0.0, "llama")
    given = one.grad_output, one.grad_residual, total, one.weight, scale, 0.0, mode, block, warps, stages, False
    yield "backward", "Liger", lambda: fused_add_rms_norm_backward(*given)


def layouts_of(n2: int) -> list[tuple[str, Any]]:
    """(direction, layout) of those that may be faster than the tables'."""
    found: list[tuple[str, Any]] = []
    for vectors, rows in itertools.product((1, 2, 4), (1, 2, 4)):
        thread_map = map_threads(n2, 8, -(-n2 // (8 * vectors)))
        if thread_map.threads * rows <= 1024:
            found += [
                ("forward", RegisterLayout(thread_map, rows, one)) for one in (1, 1536 // thread_map.threads // rows)
            ]
    for vectors, rows, stages, prefetch in itertools.product((1, 2, 4), (1, 2, 4, 8), (2, 3, 4), (0, 1)):
        thread_map = map_threads(n2, 8, -(-n2 // (8 * vectors)))
        layout = PipelineLayout(thread_map, rows, 1, stages, prefetch, 2, 2, 2)
        fits = layout.shared_bytes(8) + layout.exchange_bytes <= 227 * 1024
        if fits and 128 <= layout.threads <= 512 and layout.in_flight > 0 and layout.shared_bytes(8) > 96 * 1024:
            found += [("backward", layout), ("backward output", layout)]
    return found


def call_with(one: Operands, direction: str, layout: Any) -> Callable[[], Any]:
    """A call by a layout; None: by the tables'. direction: "forward", "backward", or "backward output"."""
    take(None)
    output, total, mean, invvar = one.forward()
    take(layout)
    add_norm.replay._cached.clear()  # a cached launch has the layout of its first call
    if direction == "forward":
        return one.forward
    recomputed = direction == "backward output"
    return lambda: one.backward(output if recomputed else total, mean, invvar, recomputed)


def compile_layouts(n2: int, rms: bool, layouts: list[tuple[str, Any]]) -> None:
    """Compile kernels into the cache on disk, by launching them once."""
    one = Operands(2048, n2, rms)
    for direction, layout in layouts:
        call_with(one, direction, layout)()


def times() -> None:
    """Print the table of contenders; first those that need no compiler."""
    from normlab.measure.timing import EventTimer

    timer = EventTimer()
    print(f"{'direction':9} {'norm':6} {'shape':12} {'contender':16} {'us':>8} {'of copy':>8}")
    shapes = [(False, shape) for shape in TIMED] + [(True, shape) for shape in COMPILED]
    for (compiled, (n1, n2)), rms in itertools.product(shapes, (True, False)):
        one = Operands(n1, n2, rms)
        copy = copy_time(timer, one)
        for direction, name, call in contenders(one, compiled):
            took = timer(call).median
            kind = "rms" if rms else "layer"
            print(f"{direction:9} {kind:6} {n1:5} x {n2:<5} {name:16} {1e6 * took:8.1f} {copy / took:8.3f}", flush=True)


def copy_time(timer: Any, one: Operands) -> float:
    """The seconds of a copy that reads two matrices and writes two."""
    import torch

    source = torch.cat([one.x, one.residual])
    target = torch.empty_like(source)
    return timer(lambda: target.copy_(source)).median


def sweep(pool: ProcessPoolExecutor, until: float) -> None:
    """Print the fastest layouts; stop at a time of the clock."""
    from normlab.measure.timing import EventTimer

    timer, processes = EventTimer(), os.cpu_count() or 1
    jobs = [(n2, rms, layouts_of(n2)) for n2 in (4096, 8192) for rms in (True, False)]
    waits = [
        [pool.submit(compile_layouts, n2, rms, found[at::processes]) for at in range(processes)]
        for n2, rms, found in jobs
    ]
    for (n2, rms, found), waiting in zip(jobs, waits, strict=True):
        for one in waiting:
            one.result(timeout=max(1.0, until - time.time()))
        operands = Operands(8192, n2, rms)
        copy = copy_time(timer, operands)
        for direction in ("forward", "backward", "backward output"):
            tried = [
                (copy / timer(call_with(operands, way, layout)).median, layout)
                for way, layout in found
                if way == direction
            ]
            for fraction, layout in sorted(tried, reverse=True, key=lambda one: one[0])[:4]:
                print(f"{direction:15} {'rms' if rms else 'layer':6} {n2:5} {fraction:.3f} {tuple(layout)}", flush=True)
    take(None)


def check_all(pool: ProcessPoolExecutor, others: bool) -> int:
    """Print what is out of its bound; return how many norms were checked. others: gated and modulated ones."""
    jobs = [(check, (*case, rms)) for case in CHECKED for rms in (True, False)]
    jobs += [(check_heads, one) for one in HEADS]
    if others:
        jobs = gated_norm.checks()
    for (_, given), result in [(job, pool.submit(job[0], *job[1])) for job in jobs]:
        try:
            result.result()
        except Exception as error:
            print(given, str(error)[:300])
    return len(jobs)


def main() -> None:
    """Do the parts that are asked for."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("parts", nargs="*", default=["check", "heads", "peers"], help="as above")
    asked.add_argument("--seconds", type=float, default=600, help="end the sweep after so many seconds")
    options = asked.parse_args()
    until = time.time() + options.seconds
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        for part in ("check", "check_others"):
            if part in options.parts:
                count = check_all(pool, part == "check_others")
                print(f"{count} norms are checked after {time.time() - until + options.seconds:.0f} s", flush=True)
        if "heads" in options.parts:
            head_times()
        if "layouts" in options.parts:
            sweep(pool, until)
        if "peers" in options.parts:  # last: the compiler's own processes take the host's time from the others
            import torch._functorch.config

            torch._functorch.config.donated_buffer = False  # backwards are timed again and again
            times()
        if "others" in options.parts:
            gated_norm.times()


if __name__ == "__main__":
    main()
