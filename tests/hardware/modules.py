"""What the modules of normlab.nn cost on a GPU: python -m tests.hardware.modules [OUT.json]

Beside torch.nn's own: forward and backward of one norm, on the GPU (2^27 elements, cold L2) and on the host (8 x 4096
elements, where the GPU waits for the host). "exact" comes three times: without a column at risk; so, and after a step
of an optimizer, which is not timed with it; and with 1 % of the columns at risk. Behind a step the GPU is asked again
how many columns are at risk: what the host takes for that is in the times of the step itself, and in those of DEPTH
norms behind each other, forward, backward and a step for all of them.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from normlab.bench.machine import provenance
from normlab.bench.timing import EventTimer, Spread, host_time
from normlab.nn import FusedLayerNorm, FusedRMSNorm

N2 = 4096
LARGE, SMALL = 2**27 // N2, 8
ROUNDS, DEEP_ROUNDS, CALLS = 12, 3, 20
OURS, THEIRS = {"layer": FusedLayerNorm, "rms": FusedRMSNorm}, {"layer": torch.nn.LayerNorm, "rms": torch.nn.RMSNorm}
DEPTH = 64
THEIRS_STEPPED = "torch.nn, after a step"
MODES: dict[str, Any] = {
    "False": False,
    "True": True,
    "exact": "exact",
    "exact, after a step": "exact",
    "exact, 1 % at risk": "exact",
}


def modules(norm: str, dtype: torch.dtype) -> dict[str, torch.nn.Module]:
    """The contenders, by name."""
    like: Any = {"device": "cuda", "dtype": dtype}
    found: dict[str, torch.nn.Module] = {name: THEIRS[norm](N2, **like) for name in ("torch.nn", THEIRS_STEPPED)}
    for name, mode in MODES.items():
        found[name] = OURS[norm](N2, memory_efficient=mode).to(**like)
    with torch.no_grad():
        found["exact, 1 % at risk"].weight[::100] = 0
    return found


def call_of(module: torch.nn.Module, rows: int, dtype: torch.dtype) -> Callable[[], None]:
    """A forward and a backward."""
    x = torch.randn(rows, N2, device="cuda", dtype=dtype, requires_grad=True)
    grad = torch.randn_like(x)

    def call() -> None:
        x.grad = None
        module(x).backward(grad)

    return call


def step_of(module: torch.nn.Module) -> Callable[[], Any]:
    """A step of an optimizer that leaves the values of its parameters as they are."""
    return torch.optim.SGD(module.parameters(), lr=0.0).step


def in_turn(times: dict[str, Callable[[], Spread]], rounds: int) -> dict[str, Spread]:
    """Of each, the quickest of so many medians, taken in turn: what else the host does slows all of them alike."""
    taken = [{name: time() for name, time in times.items()} for _ in range(rounds)]
    return {name: min((one[name] for one in taken), key=lambda one: one.median) for name in times}


def host_times(norm: str, dtype: torch.dtype) -> dict[str, Spread]:
    """Of a forward and backward, behind a step that is not timed or without one."""
    timed: dict[str, Callable[[], Spread]] = {}
    for name, module in modules(norm, dtype).items():
        before = step_of(module) if name.endswith("after a step") else None
        timed[name] = partial(host_time, call_of(module, SMALL, dtype), torch.cuda.synchronize, CALLS, before=before)
    return in_turn(timed, ROUNDS)


def training_times(norm: str, dtype: torch.dtype) -> dict[str, Spread]:
    """Of DEPTH norms behind each other and an optimizer's step, for each norm; and of a step of one norm by itself."""
    timed: dict[str, Callable[[], Spread]] = {}
    for name, make in {"torch.nn": THEIRS[norm], "exact": partial(OURS[norm], memory_efficient="exact")}.items():
        deep = torch.nn.Sequential(*(make(N2) for _ in range(DEPTH))).to("cuda", dtype)
        call, step = call_of(deep, SMALL, dtype), step_of(deep)

        def train(call: Callable[[], None] = call, step: Callable[[], Any] = step) -> None:
            call()
            step()

        timed[f"{name}, {DEPTH} norms and a step"] = partial(host_time, train, torch.cuda.synchronize, 1)
        call_of(deep[0], SMALL, dtype)()
        timed[f"{name}, a step"] = partial(host_time, step_of(deep[0]), torch.cuda.synchronize, CALLS)
    return in_turn(timed, DEEP_ROUNDS)


def main() -> None:
    """Measure and print."""
    timer, rows, training = EventTimer(), [], []
    for norm in OURS:
        for dtype in (torch.bfloat16, torch.float32):
            hosts = host_times(norm, dtype)
            for name, module in modules(norm, dtype).items():
                before = step_of(module) if name.endswith("after a step") else None
                device, host = timer(call_of(module, LARGE, dtype), before), hosts[name]
                times = {"device": device.as_dict(), "host": host.as_dict()}
                rows.append({"norm": norm, "dtype": str(dtype), "module": name, **times})
                microseconds = f"{1e6 * device.median:9.1f} us on the GPU {1e6 * host.median:7.1f} us on the host"
                print(f"{norm:6} {dtype!s:15} {name:22} {microseconds}")
            for name, host in training_times(norm, dtype).items():
                training.append({"norm": norm, "dtype": str(dtype), "what": name, "host": host.as_dict()})
                print(f"{norm:6} {dtype!s:15} {name:32} {1e6 * host.median:9.1f} us on the host")
    if sys.argv[1:]:
        with open(sys.argv[1], "w") as file:
            command = "python -m hardware.modules " + sys.argv[1]
            found = {"command": command, "n2": N2, "rows": rows, "training": training}
            json.dump({"what": "modules", **provenance(), **found}, file, indent=1)


if __name__ == "__main__":
    main()
