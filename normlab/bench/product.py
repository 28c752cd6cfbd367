"""Measure every step of the SGEMM ladder on one product, beside cuBLAS in full float32.

A step's speed is that of the whole call, as a user makes it, in operations a second: 2 M N K over its time. cuBLAS is
torch's `mm` with TF32 off. Before anything is timed its whole result is held against float64.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from normlab import oracle
from normlab.bench.ladder import Launch, Occupancy
from normlab.bench.norm import failure, free_memory
from normlab.host import matmul
from normlab.host.arrays import backend_of
from normlab.kernels import LADDERS, Product, ProductStep, roofline
from normlab.measure.timing import CALLS, Timer
from normlab.oracle.floats import Extended, float_format, gamma_k

SGEMM: tuple[ProductStep, ...] = LADDERS["sgemm"]

METHOD = (
    f"CUDA events around each of {CALLS}, L2 emptied before each as for norms; "
    "median and quartiles. cuBLAS: torch.mm in float32 without TF32. Peak: multiprocessors x 128 multiply-adds x 2 x "
    "the highest clock, which a GPU at its power limit does not keep."
)


@dataclass(frozen=True)
class Size:
    """(M, K) times (K, N), float32."""

    m: int
    n: int
    k: int

    @property
    def operations(self) -> int:
        """Return how many multiplications and additions there are."""
        return roofline.product_operations(self.m, self.n, self.k)

    def draw(self, device: str) -> tuple[Any, Any]:
        """Return A and B, standard normal, the same every time."""
        import torch

        generator = torch.Generator(device).manual_seed(self.k)
        shapes = (self.m, self.k), (self.k, self.n)
        a, b = (torch.randn(shape, generator=generator, device=device) for shape in shapes)
        return a, b


class Check:
    """The truth about one product, in float64 on its device, and how far off float32 sums may be in whatever order."""

    def __init__(self, a: Any, b: Any):
        terms = a.shape[1]
        left, right = a.double(), b.double()
        self.want = left @ right
        # as `oracle.product_bound`, for alpha = 1 and beta = 0, on the device
        u, u64 = (Extended(oracle.unit_roundoff(name)) for name in ("float32", "float64"))
        factor = float(gamma_k(terms, u) + gamma_k(terms + 2, u64))
        self.bound = left.abs() @ right.abs() * factor + terms * float(float_format("float32").half_subnormal)

    def worst(self, got: Any) -> float:
        """Return the largest error over bound; above 1 the result is wrong, and infinite for a NaN."""
        ratios = (got.double() - self.want).abs() / self.bound
        return float(ratios.nan_to_num(nan=float("inf"), posinf=float("inf")).max())


def climb(
    size: Size,
    timer: Timer,
    occupancy: Occupancy,
    device: str,
    peak: float | None,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Return cuBLAS and every step in the ladder's order, as a record holds them; peak: operations per second.

    Where the matrices or the check need more memory than there is, all are "unable", with that as their "reason".
    """
    whole = {**vars(size), "operations": size.operations, "peak_tflops": peak and peak / 1e12}
    try:
        return {**whole, **_climb(size, timer, occupancy, device, peak, advance)}
    except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError
        unable = {"status": "unable", "reason": failure(error)}
    free_memory()
    steps = [{"step": step.name, "summary": step.summary, **unable} for step in SGEMM]
    return {**whole, **unable, "cublas": unable, "steps": steps}


def _climb(
    size: Size, timer: Timer, occupancy: Occupancy, device: str, peak: float | None, advance: Callable[[], None]
) -> dict[str, Any]:
    import torch

    a, b = size.draw(device)
    check = Check(a, b)
    with full_precision():
        cublas = enter(lambda: torch.mm(a, b), size, check, timer)
    advance()
    steps = []
    for step in SGEMM:
        entry = enter(lambda step=step: matmul.sgemm(a, b, step=step.name), size, check, timer)  # type: ignore[misc]
        if entry["status"] == "ok":
            entry |= _occupied(step, a, b, occupancy)
        steps.append({"step": step.name, "summary": step.summary, **entry})
        advance()
    for entry in [cublas, *steps]:
        if entry["status"] == "ok":
            seconds = 1e-6 * entry["median_us"]
            theirs = cublas.get("median_us")
            entry["of_cublas"] = theirs and round(1e-6 * theirs / seconds, 4)
            entry["of_peak"] = peak and round(size.operations / seconds / peak, 4)
    return {"cublas": cublas, "steps": steps}


def _occupied(step: ProductStep, a: Any, b: Any, occupancy: Occupancy) -> dict[str, Any]:
    """Return what a step's launch occupies, or a "no_kernels" that says why that is not known."""
    try:
        return occupancy(launched(step, a, b))
    except (RuntimeError, MemoryError) as error:
        return {"no_kernels": failure(error)}


def enter(call: Callable[[], Any], size: Size, check: Check, timer: Timer) -> dict[str, Any]:
    """Run a call once and look at its result; time it only if that is right. "status" as in `norm.enter`."""
    try:
        worst = check.worst(call())
        if worst > 1:
            return {"status": "wrong", "reason": f"the product is off by {worst:.3g} times its bound"}
        timed = timer(call)
    except Exception as error:  # a launch that the driver refuses, say: the other steps go on
        return {"status": "unable", "reason": failure(error)}
    tflops = size.operations / timed.median / 1e12
    return {"status": "ok", **timed.as_dict(), "tflops": round(tflops, 3), "error_over_bound": round(worst, 4)}


def launched(step: ProductStep, a: Any, b: Any) -> Launch:
    """Return the one launch of a step without making it."""
    backend = backend_of({"a": a, "b": b}, {})
    found: list[Launch] = []

    def launch(kernel: Any, grid: Any, block: Any, *arguments: Any, **options: Any) -> None:
        found.append(Launch(kernel, grid, block, arguments, options))

    one, nothing = matmul.FLOAT32.type(1), matmul.FLOAT32.type(0)
    (m, k), n = a.shape, b.shape[1]
    output = backend.empty((m, n), matmul.FLOAT32)
    step.run(launch, None, Product(one, backend.operand(a, (m, k)), backend.operand(b, (k, n)), nothing, None, output))
    return found[0]


@contextmanager
def full_precision() -> Iterator[None]:
    """Let torch multiply float32 matrices in float32, without TF32, inside the `with` block."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
