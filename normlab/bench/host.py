"""Measure what a call costs on the host: `normlab bench host`. The arrays are so small that the GPU has little to do.

Three times are measured:

- eager: from call to return, allocation of the results included, while the GPU keeps up with the host;
- replayed: per call of a CUDA graph of CALLS calls, from the start of the replay to the end of the GPU's work;
- first call: in a new process with the compilers' disk caches empty, and in a second one with the caches then filled.
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

SHAPE = (8, 4096)  # n1, n2
DTYPE = "bfloat16"
# Environment variables that name the folders in which the contenders' compilers keep compiled code.
CACHES = ("NORMLAB_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "QUACK_CACHE_DIR", "CUDA_CACHE_PATH")
CALLS = 100  # in a row, or in one graph
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
    """Return a row for every problem: each contender's time of an eager call and of a call under graph replay.

    eager, replayed: `eager_time` and `replay_time`; tests pass functions that need no GPU.
    """
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
    """Return the time under replay as "graph". If the call cannot be captured: None, and the reason as "no_graph"."""
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
            results.append(call())  # keep every result, so that no later call of the graph writes to its memory
    whole = host_time(graph.replay, torch.cuda.synchronize, 1, wait=True)
    return Spread(*(value / CALLS for value in whole))


def first_calls(names: list[str], call: Callable[[str, Path], dict[str, float]]) -> dict[str, Any]:
    """Return each contender's seconds for the first call of a new process, with cold and then with warm caches."""
    times: dict[str, Any] = {}
    for name in names:
        with TemporaryDirectory() as folder:
            try:  # two processes with the same folder: the cold one fills the caches that the warm one finds
                times[name] = {"status": "ok", "cold": call(name, Path(folder)), "warm": call(name, Path(folder))}
            except RuntimeError as error:
                times[name] = {"status": "unable", "reason": str(error)}
    return times


def first_call(name: str, folder: Path) -> dict[str, float]:
    """Run `normlab.bench.first_call` in a process whose compilers keep their caches in `folder`; return its seconds.

    Raises:
        RuntimeError: the process failed; the message has the last line of its stderr.
    """
    environment = os.environ | {variable: str(folder / variable) for variable in CACHES}
    command = [sys.executable, "-m", "normlab.bench.first_call", name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["nothing"]
        raise RuntimeError(f"its process ended with {done.returncode}, and said: {said[-1]}")
    return json.loads(done.stdout.splitlines()[-1])
