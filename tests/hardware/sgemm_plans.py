"""Which plan of the pipelined SGEMM step is the fastest? `PYTHONPATH=tests python -m hardware.sgemm_plans [SIZE …]`.

On a GPU: every candidate beside cuBLAS in full float32, checked before it is timed. What wins goes into
`step_11_pipelined.PLANS`, and what each has reached into its docstring.
"""

import sys

import torch

from normlab import sgemm
from normlab.bench.choices import sizes
from normlab.bench.product import Check, Size, full_precision
from normlab.bench.timing import EventTimer
from normlab.kernels.sgemm import step_11_pipelined
from normlab.kernels.sgemm.step_11_pipelined import PAIR, PLANS, TALL, WIDE

CANDIDATES = [
    *PLANS,
    WIDE._replace(stages=4),
    WIDE._replace(depth=8, stages=4),  # a main loop of half the instructions
    WIDE._replace(depth=32, stages=2),  # and of twice as many
    TALL._replace(depth=8, stages=4),
    PAIR._replace(depth=8, stages=4),
    WIDE._replace(runs_across=2, blocks=2),  # 128 x 128 by 256 threads with 8 x 8 elements each, twice
    WIDE._replace(runs_across=2, depth=8, stages=4, blocks=2),
]


def measure(size: Size, timer: EventTimer) -> None:
    """Print a line for cuBLAS and one for each candidate."""
    a, b = size.draw("cuda")
    check = Check(a, b)
    with full_precision():
        cublas = timer(lambda: torch.mm(a, b)).median
    print(f"{size}: cuBLAS {size.operations / cublas / 1e12:.2f} TFLOP/s")
    chosen = step_11_pipelined.plan_for
    for plan in CANDIDATES:
        step_11_pipelined.plan_for = lambda *sizes, plan=plan: plan
        try:
            worst = check.worst(sgemm(a, b, step="pipelined"))
            seconds = timer(lambda: sgemm(a, b, step="pipelined")).median
            speed = f"{size.operations / seconds / 1e12:.2f} TFLOP/s, {cublas / seconds:.3f} of cuBLAS"
            print(f"  {plan.rows:3} x {plan.columns:3} {plan}: {speed}, error {worst:.3f} of its bound", flush=True)
        except RuntimeError as error:
            print(f"  {plan}: {error}")
        finally:
            step_11_pipelined.plan_for = chosen
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    print(f"  plan_for chooses {chosen(size.m, size.n, multiprocessors)}")


if __name__ == "__main__":
    for text in sys.argv[1:] or ["4096", "8192", "2048", "4000x4100x3000"]:
        measure(Size(*sizes("SIZE", text)), EventTimer())
