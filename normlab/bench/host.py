"""Measure what a call costs on the host, with next to nothing to do on the GPU: `normlab bench host`.

Eagerly: the time from call to return, allocation of the results included, while the GPU keeps up. Replayed: one of many
calls that a CUDA graph has captured, from the replay to the end of its work. And the first call of a new process, with
the compilers' disk caches empty and then filled.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from normlab.bench.contenders import Contender
from normlab.bench.norm import failure
from normlab.bench.problem import Problem
from normlab.measure.timing import REPETITIONS, Spread, host_time

SHAPE = (8, 4096)
DTYPE = "bfloat16"
# Where the compilers of all contenders keep what they have compiled.
CACHES = ("NORMLAB_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "QUACK_CACHE_DIR", "CUDA_CACHE_PATH")
CALLS = 100
METHOD = (
    f"eager: host time of a call, of {CALLS} in a row on an idle GPU, {REPETITIONS} times; graph: time of a call, of "
    f"{CALLS} captured in one CUDA graph, from its replay to the end of its work, {REPETITIONS} times; medians and "
    "quartiles. First call: of a new process, on inputs that are on the GPU; cold: with empty cache directories, warm: "
    "with those that the cold one filled."
)


def measure(
    problems: list[Problem],
    contenders: list[Contender],
    eager: Callable[[Callable[[], Any]], Spread],
    replayed: Callable[[Callable[[], Any]], Spread],
    device: str,
) -> list[dict[str, Any]]:
    """Return a row for every problem: every contender's eager call and its call under graph replay."""
    rows = []
    for problem in problems:
        data, entries = problem.draw(device), {}
        for contender in contenders:
            if problem.direction not in contender.directions:
                continue
            try:
                call = getattr(contender, problem.direction)(data)
                entries[contender.name] = {
                    "status": "ok",
                    "eager": eager(call).as_dict(),
                    **_attempt(replayed, call),
                }
            except Exception as error:  # whatever a peer raises
                entries[contender.name] = {"status": "unable", "reason": failure(error)}
        rows.append({**vars(problem), "contenders": entries})
    return rows


def _attempt(replayed: Callable[[Callable[[], Any]], Spread], call: Callable[[], Any]) -> dict[str, Any]:
    """Return the time under replay as "graph"; None for a call that cannot be captured, and "no_graph" says why."""
    try:
        return {"graph": replayed(call).as_dict()}
    except RuntimeError as error:
        return {"graph": None, "no_graph": failure(error)}


def eager_time(call: Callable[[], Any]) -> Spread:
    """Return the host time of an eager call."""
    import torch

    return host_time(call, torch.cuda.synchronize, CALLS)


def replay_time(call: Callable[[], Any]) -> Spread:
    """Return the time of one of CALLS calls in a CUDA graph, from its replay to the end of its work.

    Raises:
        RuntimeError: the call cannot be captured.
    """
    import torch

    graph, results = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            results.append(call())  # kept: each has memory of its own, as in an eager run
    whole = host_time(graph.replay, torch.cuda.synchronize, 1, wait=True)
    return Spread(*(value / CALLS for value in whole))


def first_calls(names: list[str], call: Callable[[str, Path], dict[str, float]]) -> dict[str, Any]:
    """Return each contender's seconds for the first call of a new process, with cold and then with warm caches."""
    times: dict[str, Any] = {}
    for name in names:
        with TemporaryDirectory() as folder:
            try:
                times[name] = {"status": "ok", "cold": call(name, Path(folder)), "warm": call(name, Path(folder))}
            except RuntimeError as error:
                times[name] = {"status": "unable", "reason": str(error)}
    return times


def first_call(name: str, folder: Path) -> dict[str, float]:
    """Return the seconds of `normlab.bench.first_call` in a process whose compilers keep their caches in `folder`.

    Raises:
        RuntimeError: the process failed; with the last line of what it said.
    """
    environment = os.environ | {variable: str(folder / variable) for variable in CACHES}
    command = [sys.executable, "-m", "normlab.bench.first_call", name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["nothing"]
        raise RuntimeError(f"its process ended with {done.returncode}, and said: {said[-1]}")
    return json.loads(done.stdout.splitlines()[-1])
