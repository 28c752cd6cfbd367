"""What the modules of normlab.nn cost on a GPU: python -m tests.hardware.modules [OUT.json]

Beside torch.nn's own: forward and backward of one norm, on the GPU (2^27 elements, cold L2) and on the host (8 x 4096
elements, where the GPU waits for the host): for each of DEPTH norms behind each other, and of one by itself, where it
takes as long again to hand over to autograd's thread and back. The process has one core, where times repeat within a
few percent: on several, in a virtual machine, the same code differed by 1.4 from run to run.
"exact" comes three times: without a column at risk; so, in the first forward behind a step of an optimizer for all of
them, when the GPU is asked again how many are; and with 1 % of the columns at risk. The step is not in that time; under
"training" it is.
"""

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from normlab.measure.provenance import provenance
from normlab.measure.timing import EventTimer, Spread, host_time
from normlab.nn import FusedLayerNorm, FusedRMSNorm

N2 = 4096
LARGE, SMALL = 2**27 // N2, 8
ROUNDS, DEEP_ROUNDS, CALLS = 100, 20, 10
OURS, THEIRS = {"layer": FusedLayerNorm, "rms": FusedRMSNorm}, {"layer": torch.nn.LayerNorm, "rms": torch.nn.RMSNorm}
DEPTH = 64
MODES: dict[str, Any] = {
    "False": False,
    "True": True,
    "exact": "exact",
    "exact, after a step": "exact",
    "exact, 1 % at risk": "exact",
}
TRAINING = {"torch.nn, after a step": "torch.nn, with a step", "exact, after a step": "exact, with a step"}


def modules(norm: str, dtype: torch.dtype) -> dict[str, torch.nn.Module]:
    """The contenders, by name."""
    like: Any = {"device": "cuda", "dtype": dtype}
    theirs = "torch.nn", "torch.nn, after a step"
    found: dict[str, torch.nn.Module] = {name: THEIRS[norm](N2, **like) for name in theirs}
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


def timing(call: Callable[[], None], calls: int = 1, before: Callable[[], Any] | None = None) -> Callable[[], Spread]:
    """What times a call on the host, quickly: a moment without others will be found."""
    return partial(host_time, call, torch.cuda.synchronize, calls, before=before, repetitions=5)


def host_times(norm: str, dtype: torch.dtype) -> dict[str, Spread]:
    """Of a forward and backward, of each norm: behind a step or without one, and with it under TRAINING's names."""
    timed: dict[str, Callable[[], Spread]] = {}
    layers = [modules(norm, dtype) for _ in range(DEPTH)]
    for name in layers[0]:
        deep = torch.nn.Sequential(*(one[name] for one in layers))
        call, step = call_of(deep, SMALL, dtype), step_of(deep)
        timed[name] = timing(call, before=step if name in TRAINING else None)
        if name in TRAINING:
            timed[TRAINING[name]] = timing(partial(both, call, step))
    return {
        name: Spread(*(seconds / DEPTH for seconds in spread)) for name, spread in in_turn(timed, DEEP_ROUNDS).items()
    }


def times_alone(norm: str, dtype: torch.dtype) -> dict[str, Spread]:
    """Of a forward and backward of one norm."""
    calls = {name: call_of(one, SMALL, dtype) for name, one in modules(norm, dtype).items() if name not in TRAINING}
    return in_turn({name: timing(call, CALLS) for name, call in calls.items()}, ROUNDS)


def both(call: Callable[[], None], step: Callable[[], Any]) -> None:
    """One after the other."""
    call()
    step()


def main() -> None:
    """Measure and print."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # before there is another thread
    timer, rows, training = EventTimer(), [], []
    for norm in OURS:
        for dtype in (torch.bfloat16, torch.float32):
            hosts, alone = host_times(norm, dtype), times_alone(norm, dtype)
            for name, module in modules(norm, dtype).items():
                before = step_of(module) if name in TRAINING else None
                device, host = timer(call_of(module, LARGE, dtype), before), hosts.pop(name)
                times = {"device": device.as_dict(), "host": host.as_dict()}
                if name in alone:
                    times["host, alone"] = alone[name].as_dict()
                rows.append({"norm": norm, "dtype": str(dtype), "module": name, **times})
                shown = ", ".join(f"{where} {time['median_us']:.1f}" for where, time in times.items())
                print(f"{norm:6} {dtype!s:15} {name:22} {shown} us")
            for name, host in hosts.items():
                training.append({"norm": norm, "dtype": str(dtype), "what": name, "host": host.as_dict()})
                print(f"{norm:6} {dtype!s:15} {name:22} host {1e6 * host.median:.1f} us")
    if sys.argv[1:]:
        with open(sys.argv[1], "w") as file:
            command = "python -m hardware.modules " + sys.argv[1]
            found = {"command": command, "n2": N2, "rows": rows, "training": training}
            json.dump({"what": "modules", **provenance(), **found}, file, indent=1)


if __name__ == "__main__":
    main()
