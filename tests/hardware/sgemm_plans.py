"""Which plan of the pipelined SGEMM step is the fastest? `PYTHONPATH=tests python -m hardware.sgemm_plans [SIZE …]`.

On a GPU: every candidate beside cuBLAS in full float32, checked before it is timed. What wins becomes
`step_11_pipelined.PLAN`, and what each has reached goes into its docstring.
"""

import sys

import torch

from normlab import sgemm
from normlab.bench.choices import sizes
from normlab.bench.product import Check, Size, full_precision
from normlab.kernels.sgemm import step_11_pipelined
from normlab.kernels.sgemm.step_11_pipelined import PLAN
from normlab.measure.timing import EventTimer

CANDIDATES = [
    PLAN,
    *(PLAN._replace(depth=depth, stages=stages) for depth, stages in ((8, 4), (8, 5), (24, 3), (32, 2), (32, 3))),
    *(PLAN._replace(stages=stages) for stages in (2, 4)),
    PLAN._replace(runs_across=4, blocks=1),  # 128 x 256, a thread 8 x 16
    PLAN._replace(runs_down=4, blocks=1),  # 256 x 128, a thread 16 x 8
    PLAN._replace(runs_down=4, warps_down=2),  # 128 x 128 by 128 threads, 16 x 8 each
]


def measure(size: Size, timer: EventTimer) -> None:
    """Print a line for cuBLAS and one for each candidate."""
    a, b = size.draw("cuda")
    check = Check(a, b)
    with full_precision():
        cublas = timer(lambda: torch.mm(a, b)).median
    print(f"{size}: cuBLAS {size.operations / cublas / 1e12:.2f} TFLOP/s")
    for plan in CANDIDATES:
        step_11_pipelined.PLAN = plan
        try:
            worst = check.worst(sgemm(a, b, step="pipelined"))
            seconds = timer(lambda: sgemm(a, b, step="pipelined")).median
            speed = f"{size.operations / seconds / 1e12:.2f} TFLOP/s, {cublas / seconds:.3f} of cuBLAS"
            print(f"  {plan.rows:3} x {plan.columns:3} {plan}: {speed}, error {worst:.3f} of its bound", flush=True)
        except RuntimeError as error:
            print(f"  {plan}: {error}")
        finally:
            step_11_pipelined.PLAN = PLAN


if __name__ == "__main__":
    for text in sys.argv[1:] or ["4096", "8192", "2048", "4000x4100x3000"]:
        measure(Size(*sizes("SIZE", text)), EventTimer())
