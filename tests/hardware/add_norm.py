"""Norms of x + residual, of heads, gated and modulated on a GPU: python -m hardware.add_norm [PART …] [--json OUT]

    check         both norms of a sum at twenty shapes, and heads that lie apart, held to their bounds
    heads         the times of queries' norms in a fused tensor
    peers         the times beside torch's x + residual and then its norm, that by torch.compile, Liger's kernel, and
                  FlashInfer's (`hardware.flashinfer_norm`)
    check_others  gated and modulated norms held to their bounds
    others        their times beside torch's operations and torch.compile (`hardware.gated_norm`)

Times are medians with a cold L2 (`normlab.measure.timing`), as fractions of a copy that moves as many bytes. Norms of a
sum move two matrices in and two out, forward and backward. Without an argument: check, heads and peers.
`hardware.variants` times other layouts.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from add_norms import examine_add_backward, fixed_case

from hardware import flashinfer_norm, gated_norm
from normlab import rms_norm_backward, rms_norm_forward
from normlab.engine import using
from normlab.host import add_norm
from normlab.measure.provenance import provenance

CHECKED = [
    *itertools.product([(67, 64), (5, 333), (40, 1024), (9, 4096), (3, 8192)], ("bfloat16", "float32"), (None,)),
    *itertools.product([(5, 77), (21, 520), (300, 768), (2, 16384)], ("float16",), (None,)),
    *itertools.product([(7, 2048), (33, 640)], ("bfloat16",), ("float32",)),
    *itertools.product([(7, 2048), (3, 20480)], ("float32",), ("bfloat16",)),
    ((3, 66_000), "bfloat16", None),
    ((4, 100), "float64", None),
]
HEADS = [(32, 8, 128), (16, 16, 64), (8, 4, 256)]  # heads of the query, of key and value together, head_dim
TOKENS = 8192, 32768
TIMED = [(8192, 4096), (8192, 2048), (8192, 1024), (4096, 8192)]
COMPILED = TIMED[:1]  # the compiler takes ten seconds for a shape
EPS = 1e-6
METHOD = "medians with a cold L2, as normlab bench norm; a copy of random bfloat16 that moves as many bytes"


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


class Row(NamedTuple):
    """A time: of a pass of a norm by a contender, and the fraction of a copy that moves as many bytes."""

    direction: str
    norm: str
    shape: str
    contender: str
    us: float
    of_copy: float

    @staticmethod
    def timed(name: tuple[str, str, str, str], took: float, copy: float) -> "Row":
        """Return a row, and print it. name: the first four; took, copy: seconds."""
        row = Row(*name, round(1e6 * took, 2), round(copy / took, 4))
        print("{:9}{:10}{:22}{:15}{:8.1f} us{:7.3f} of a copy".format(*row), flush=True)
        return row


def copy_time(timer: Any, elements: int, matrices: int) -> float:
    """The seconds of a copy that moves as many bytes as so many matrices of bfloat16 have."""
    import torch

    source = torch.randn(elements * matrices // 2, device="cuda").bfloat16()
    target = torch.empty_like(source)
    return timer(lambda: target.copy_(source)).median


def head_times() -> Iterator[Row]:
    """Yield the times of queries' norms."""
    import torch

    from normlab.measure.timing import EventTimer

    timer = EventTimer()
    for (heads, others, columns), tokens in itertools.product(HEADS, TOKENS):
        x, grad, weight = queries(tokens, heads, others, columns)
        _, invvar = add_norm.head_rms_norm_forward(x, weight)
        copies = {matrices: copy_time(timer, x.numel(), matrices) for matrices in (2, 3)}
        calls = {
            ("forward", "normlab"): (2, lambda x=x, weight=weight: add_norm.head_rms_norm_forward(x, weight)),
            ("backward", "normlab"): (
                3,
                lambda *given, of=(grad, x, invvar, weight): add_norm.head_rms_norm_backward(*of),
            ),
            ("forward", "torch"): (
                2,
                lambda x=x, weight=weight: torch.nn.functional.rms_norm(x, x.shape[-1:], weight, EPS),
            ),
        }
        for (direction, contender), (matrices, call) in calls.items():
            name = direction, "heads", f"{tokens} x {heads} x {columns}", contender
            yield Row.timed(name, timer(call).median, copies[matrices])


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
        yield from flashinfers(one)


def no_grad(function: Callable, one: Operands) -> Any:
    """A forward alone."""
    import torch

    with torch.no_grad():
        return function(one.x, one.residual, one.weight, one.bias)


def flashinfers(one: Operands) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """FlashInfer's fused kernel, if its headers are there; it has no backward, and writes over x and the residual."""
    import torch

    if flashinfer_norm.library() is None:
        return
    x, residual = one.x.clone(), one.residual.clone()
    flashinfer_norm.add_rms_norm(x, residual, one.weight, EPS)
    for mine, theirs in zip(one.forward(), (x, residual), strict=False):
        torch.testing.assert_close(theirs, mine, rtol=2**-5, atol=2**-5)
    yield "forward", "FlashInfer", lambda: flashinfer_norm.add_rms_norm(x, residual, one.weight, EPS)


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


def times() -> Iterator[Row]:
    """Yield the times of contenders; first those that need no compiler."""
    from normlab.measure.timing import EventTimer

    timer = EventTimer()
    shapes = [(False, shape) for shape in TIMED] + [(True, shape) for shape in COMPILED]
    for (compiled, (n1, n2)), rms in itertools.product(shapes, (True, False)):
        one, copy = Operands(n1, n2, rms), copy_time(timer, n1 * n2, 4)
        for direction, contender, call in contenders(one, compiled):
            if compiled and contender != "torch.compile":
                continue
            name = direction, "rms" if rms else "layer", f"{n1} x {n2}", contender
            yield Row.timed(name, timer(call).median, copy)


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
    asked.add_argument("--json", type=Path, help="a file for the record")
    options = asked.parse_args()
    began, rows = time.time(), []
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        for part in ("check", "check_others"):
            if part in options.parts:
                count = check_all(pool, part == "check_others")
                print(f"{count} norms are checked after {time.time() - began:.0f} s", flush=True)
    # The checking processes have ended: the compiler's take the host's time, too, so its contenders come last.
    if "heads" in options.parts:
        rows += head_times()
    if "peers" in options.parts or "others" in options.parts:
        import torch._functorch.config

        torch._functorch.config.donated_buffer = False  # backwards are timed again and again
    if "peers" in options.parts:
        rows += times()
    if "others" in options.parts:
        rows += gated_norm.times(Row, copy_time)
    if options.json is not None:
        command = " ".join(["python -m hardware.add_norm", *sys.argv[1:]])
        record = {"what": "norms with extras", **provenance(), "command": command, "method": METHOD}
        options.json.write_text(json.dumps({**record, "rows": [row._asdict() for row in rows]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
