"""What the modules of normlab.nn cost on a GPU: python -m tests.hardware.modules [OUT.json]

Beside torch.nn's own: forward and backward of one norm, on the GPU (2^27 elements, cold L2) and on the host (8 x 4096
elements, where the GPU waits for the host). "exact" comes three times: without a column at risk; so, and after a step
of an optimizer, when the GPU is asked again; and with 1 % of the columns at risk.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import torch

from normlab.bench.machine import provenance
from normlab.bench.timing import EventTimer, Spread, host_time
from normlab.nn import FusedLayerNorm, FusedRMSNorm, room

N2 = 4096
LARGE, SMALL = 2**27 // N2, 8
ROUNDS, CALLS = 20, 20
OURS, THEIRS = {"layer": FusedLayerNorm, "rms": FusedRMSNorm}, {"layer": torch.nn.LayerNorm, "rms": torch.nn.RMSNorm}
STEPPED = "exact, after a step"
MODES: dict[str, Any] = {
    "False": False,
    "True": True,
    "exact": "exact",
    STEPPED: "exact",
    "exact, 1 % at risk": "exact",
}


def modules(norm: str, dtype: torch.dtype) -> dict[str, torch.nn.Module]:
    """The contenders, by name."""
    like: Any = {"device": "cuda", "dtype": dtype}
    found: dict[str, torch.nn.Module] = {"torch.nn": THEIRS[norm](N2, **like)}
    for name, mode in MODES.items():
        found[name] = OURS[norm](N2, memory_efficient=mode).to(**like)
    with torch.no_grad():
        found["exact, 1 % at risk"].weight[::100] = 0
    return found


def step(module: torch.nn.Module, rows: int, dtype: torch.dtype, stepped: bool) -> Callable[[], None]:
    """A forward and a backward; as after a step of some optimizer, or as without one."""
    x = torch.randn(rows, N2, device="cuda", dtype=dtype, requires_grad=True)
    grad = torch.randn_like(x)

    def call() -> None:
        x.grad = None
        module(x).backward(grad)

    if not stepped:
        return call
    call()  # which makes its room
    own = next(made for (key, *_), made in room._rooms.items() if key == room._key(module.weight))

    def after_step() -> None:
        own.steps, own.shown = own.steps + 1, own.shown + 1  # what its hook leaves, besides the versions
        call()

    return after_step


def host_times(calls: dict[str, Callable[[], None]]) -> dict[str, Spread]:
    """Of each, the quickest of ROUNDS medians, taken in turn: what else the host does slows all of them alike."""
    rounds = [
        {name: host_time(call, torch.cuda.synchronize, CALLS) for name, call in calls.items()} for _ in range(ROUNDS)
    ]
    return {name: min((one[name] for one in rounds), key=lambda one: one.median) for name in calls}


def main() -> None:
    """Measure and print."""
    timer, rows = EventTimer(), []
    for norm in OURS:
        for dtype in (torch.bfloat16, torch.float32):
            contenders = modules(norm, dtype)
            small = {name: step(module, SMALL, dtype, name == STEPPED) for name, module in contenders.items()}
            hosts = host_times(small)
            for name, module in contenders.items():
                device, host = timer(step(module, LARGE, dtype, name == STEPPED)), hosts[name]
                times = {"device": device.as_dict(), "host": host.as_dict()}
                rows.append({"norm": norm, "dtype": str(dtype), "module": name, **times})
                microseconds = f"{1e6 * device.median:9.1f} us on the GPU {1e6 * host.median:7.1f} us on the host"
                print(f"{norm:6} {dtype!s:15} {name:20} {microseconds}")
    if sys.argv[1:]:
        with open(sys.argv[1], "w") as file:
            command = "python -m hardware.modules " + sys.argv[1]
            json.dump({"what": "modules", **provenance(), "command": command, "n2": N2, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
