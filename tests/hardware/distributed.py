"""What norms over several ranks cost: torchrun --nproc-per-node 2 -m tests.hardware.distributed [OUT.json] [--small]

A forward and a backward with NCCL, one GPU per rank. Without a GPU: gloo and the CPU's clock; --small: shapes for that.

- LayerNorm and RMSNorm of a hidden dimension sharded evenly, 4,096 rows of 8,192 bfloat16, with and without parameters:
  normlab's, eager, in a CUDA graph and compiled; PyTorch's norm of a DTensor with placement Shard(-1), given back as
  one; and gathering x and the output's gradient by hand, with PyTorch's norm of whole rows between.
- SyncBatchNorm beside torch.nn's at the shapes of the norm family, as float32 and bfloat16 with channels last.

Each time is the median of ROUNDS calls of all ranks together, the slowest rank's of each call; contenders take turns.
It is measured on an idle GPU, which waits for the host, and with a head start for the host, which leaves the GPU's own
time. Bytes are what this rank hands to c10d's collectives as far as a dispatch mode sees them, and what it receives of
the other ranks. Before it is timed, each contender's output and gradient of x are compared with float64's; a wrong one
is printed as such, and not timed.
"""

import argparse
import json
import os
import statistics
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn.functional import layer_norm, rms_norm
from torch.utils._python_dispatch import TorchDispatchMode

from normlab.bench.family import SHAPES
from normlab.distributed import SyncBatchNorm, sharded_layer_norm, sharded_rms_norm
from normlab.measure.provenance import provenance

ROWS, COLUMNS = 4096, 8192
ROUNDS, WARM_UP = 30, 5
HEAD_START = 8_000_000  # GPU clocks, about 4 ms: longer than the host takes to queue any contender's call
UNSEEN = "compiled", "CUDA graph"  # a dispatch mode would make Dynamo give up, and sees nothing in a graph
SENDING = (
    "all_gather",
    "allgather",
    "all_reduce",
    "allreduce",
    "reduce_scatter",
    "all_to_all",
    "alltoall",
    "broadcast",
)


class Bytes(TorchDispatchMode):
    """Count the bytes that collectives get from this rank, and those that they give it from other ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = self.received = self.calls = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation; if it is a collective, add its bytes."""
        result = function(*args, **(kwargs or {}))
        if "c10d" in function.namespace and any(word in function.__name__ for word in SENDING):
            found = list(tensors(args))
            size = min((one.nbytes for one in found), default=0)
            others = dist.get_world_size() - 1
            self.calls += 1
            self.sent += size
            self.received += size * others
        return result


def tensors(given: Any) -> Any:
    """Yield the tensors in nested lists and tuples."""
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, (list, tuple)):
        for one in given:
            yield from tensors(one)


def counted(call: Callable[[], Any]) -> Bytes:
    """Return the bytes of a call."""
    with Bytes() as found:
        call()
    return found


def timed(calls: dict[str, Callable[[], Any]], device: torch.device) -> dict[str, dict[str, float]]:
    """Return the microseconds of each call: the median over rounds of the slowest rank's time.

    The calls take turns, so a slow moment of the host meets all of them. "us": the GPU is idle at first, and waits for
    the host. "device_us": the host has HEAD_START to queue the call.
    """
    for call in calls.values():
        for _ in range(WARM_UP):
            call()
    clocks = {"us": 0, "device_us": HEAD_START} if device.type == "cuda" else {"us": None}
    found: dict[str, dict[str, float]] = {name: {} for name in calls}
    for clock, head_start in clocks.items():
        samples: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(ROUNDS):
            for name, call in calls.items():
                samples[name].append(by_host(call) if head_start is None else by_events(call, head_start))
        for name, seconds in samples.items():
            found[name][clock] = slowest(seconds, device)
    return found


def by_host(call: Callable[[], Any]) -> float:
    """Return the seconds of a call by the CPU's clock."""
    dist.barrier()
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def by_events(call: Callable[[], Any], head_start: int) -> float:
    """Return the seconds of a call between two events, after so many clocks in which the GPU only waits."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    if head_start:
        torch.cuda._sleep(head_start)
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return 1e-3 * begin.elapsed_time(end)


def slowest(samples: list[float], device: torch.device) -> float:
    """Return the median, in microseconds, of the slowest rank's seconds in each round."""
    every = torch.tensor(samples, dtype=torch.float64, device=device)
    dist.all_reduce(every, dist.ReduceOp.MAX)
    return round(1e6 * statistics.median(every.tolist()), 1)


class Rows:
    """A sharded norm's problem: the whole tensors, this rank's columns, and what is right."""

    def __init__(self, rows: int, columns: int, rms: bool, affine: bool, device: torch.device):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        made = torch.Generator().manual_seed(0)
        self.rms, self.columns = rms, columns
        self.mesh = init_device_mesh(device.type, (ranks,))
        x, grad = (torch.randn(rows, columns, generator=made).to(torch.bfloat16) for _ in range(2))
        parameters = [torch.randn(columns, generator=made).to(torch.bfloat16) for _ in range(1 if rms else 2)]
        self.whole = [one.to(device) for one in (x, *(parameters if affine else []))]
        self.grad = grad.to(device)
        self.cut = slice(columns // ranks * rank, columns // ranks * (rank + 1))
        self.mine = [one[..., self.cut].contiguous().requires_grad_() for one in self.whole]
        self.my_grad = self.grad[..., self.cut].contiguous()
        wide = [one.double().requires_grad_() for one in self.whole]
        output = self.plain(*wide)
        output.backward(self.grad.double())
        self.want = output.detach()[..., self.cut], wide[0].grad[..., self.cut]

    def plain(self, x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        """Return PyTorch's norm of whole rows."""
        if self.rms:
            return rms_norm(x, (self.columns,), *parameters, eps=1e-6)
        return layer_norm(x, (self.columns,), *parameters)

    def normlab(self, x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        """Return normlab's norm of this rank's columns."""
        return sharded_rms_norm(x, *parameters) if self.rms else sharded_layer_norm(x, *parameters)

    def dtensor(self, x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        """Return PyTorch's norm of a DTensor, given back with its columns sharded."""
        shared = [
            DTensor.from_local(one, self.mesh, [Shard(one.dim() - 1)], run_check=False) for one in (x, *parameters)
        ]
        output = self.plain(*shared)
        return output.redistribute(self.mesh, [Shard(1)]).to_local()

    def gathered(self, x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        """Return PyTorch's norm of rows that are gathered first."""
        return _Gathered.apply(self, x, *parameters)

    def contenders(self) -> dict[str, Callable[..., torch.Tensor]]:
        """Return the ways to compute it, by name."""
        return {
            "normlab": self.normlab,
            "normlab, CUDA graph": self.normlab,
            "normlab, compiled": torch.compile(self.normlab, fullgraph=True),
            "DTensor": self.dtensor,
            "gather, then norm": self.gathered,
        }


class _Gathered(torch.autograd.Function):
    """Gather x and the parameters, normalise whole rows; in the backward gather the gradient of the output."""

    @staticmethod
    def forward(ctx: Any, problem: Rows, x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        whole = [columns_of_all(one).detach().requires_grad_() for one in (x, *parameters)]
        with torch.enable_grad():
            output = problem.plain(*whole)
        ctx.problem, ctx.whole, ctx.output = problem, whole, output
        return output.detach()[..., problem.cut]

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[Any, ...]:
        with torch.enable_grad():
            found = torch.autograd.grad(ctx.output, ctx.whole, columns_of_all(grad_output.contiguous()))
        return None, *(one[..., ctx.problem.cut] for one in found)


def columns_of_all(mine: torch.Tensor) -> torch.Tensor:
    """Return all ranks' columns beside each other."""
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine.detach())
    return torch.cat(parts, -1)


def passes(function: Callable[..., torch.Tensor], leaves: list[torch.Tensor], grad: torch.Tensor) -> Callable:
    """Return a call of a forward and a backward, which returns the output."""

    def call() -> torch.Tensor:
        for leaf in leaves:
            leaf.grad = None
        output = function(*leaves)
        output.backward(grad)
        return output

    return call


def fresh(leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the same leaves anew: autograd adds to a leaf on the stream of its first use, which no capture may see."""
    return [leaf.detach().requires_grad_() for leaf in leaves]


def captured(call: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """Return the replay of a call in a CUDA graph, with its collectives; without a GPU the call itself."""
    if not torch.cuda.is_available():
        return call
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(aside)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # NCCL's watchdog asks for events in a thread of its own meanwhile
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        output = call()

    def replay() -> torch.Tensor:
        graph.replay()
        return output

    return replay


def measured(
    calls: dict[str, Callable], leaves: dict[str, torch.Tensor], want: tuple, limit: float, device: torch.device
) -> list[dict]:
    """Return each contender's time and bytes, or its error, on all ranks alike. leaves: x of each."""
    errors = {name: wrongness(call, leaves[name], want, limit) for name, call in calls.items()}
    wrong = torch.tensor([float(bool(error)) for error in errors.values()], device=device)
    dist.all_reduce(wrong)
    right = {name: call for (name, call), bad in zip(calls.items(), wrong.tolist(), strict=True) if not bad}
    times = timed(right, device)
    results = []
    for name in calls:
        result: dict[str, Any] = {"contender": name}
        result |= times[name] if name in right else {"error": errors[name] or "wrong on another rank"}
        if name in right and not name.endswith(UNSEEN):
            bytes_of = counted(right[name])
            result |= {"collectives": bytes_of.calls, "sent": bytes_of.sent, "received": bytes_of.received}
        results.append(result)
    return results


def wrongness(call: Callable, x: torch.Tensor, want: tuple, limit: float) -> str:
    """Return what is wrong with a contender's output or gradient of x; "" if nothing is."""
    try:
        output = call()
        for what, got, right in zip(("output", "grad_input"), (output, x.grad), want, strict=True):
            off = float((got.detach().double() - right).abs().max() / right.abs().max())
            if not off < limit:
                return f"{what} is off by {off:.1e} of its largest value"
    except Exception as failed:  # a contender that this PyTorch lacks must not end the others
        if os.environ.get("NORMLAB_TRACEBACKS"):
            traceback.print_exc()
        return f"{type(failed).__name__}: {str(failed).splitlines()[0] if str(failed) else ''}"
    return ""


def rows_table(rows: int, columns: int, device: torch.device) -> list[dict]:
    """Measure the sharded norms."""
    found = []
    for rms in (False, True):
        for affine in (True, False):
            problem = Rows(rows, columns, rms, affine, device)
            title = f"{'RMSNorm' if rms else 'LayerNorm'}{'' if affine else ' without parameters'}"
            calls, leaves = {}, {}
            for name, function in problem.contenders().items():
                mine = fresh(problem.mine)
                call = passes(function, mine, problem.my_grad)
                calls[name], leaves[name] = captured(call) if "CUDA graph" in name else call, mine[0]
            for result in measured(calls, leaves, problem.want, 0.02, device):
                found.append({"norm": title, "shape": [rows, columns], "dtype": "bfloat16"} | result)
                show(found[-1])
    return found


def batches_table(shapes: list[tuple[int, ...]], device: torch.device) -> list[dict]:
    """Measure SyncBatchNorm beside torch.nn's."""
    found = []
    for shape in shapes:
        for dtype, last in ((torch.float32, False), (torch.bfloat16, True)):
            ranks, rank = dist.get_world_size(), dist.get_rank()
            made = torch.Generator().manual_seed(1)
            layout = torch.channels_last if last else torch.contiguous_format
            whole, grads = (
                torch.randn(ranks * shape[0], *shape[1:], generator=made).to(dtype).to(device) for _ in range(2)
            )
            wide = whole.double().requires_grad_()
            right = torch.nn.functional.batch_norm(wide, None, None, training=True)
            right.backward(grads.double())
            mine = slice(shape[0] * rank, shape[0] * (rank + 1))
            want = right.detach()[mine], wide.grad[mine]
            x = whole[mine].contiguous(memory_format=layout)
            grad = grads[mine].contiguous(memory_format=layout)
            calls, leaves = {}, {}
            for name, kind in (
                ("normlab", SyncBatchNorm),
                ("normlab, CUDA graph", SyncBatchNorm),
                ("torch.nn.SyncBatchNorm", torch.nn.SyncBatchNorm),
            ):
                (leaves[name],) = fresh([x])
                call = passes(kind(shape[1]).to(device), [leaves[name]], grad)
                calls[name] = captured(call) if "CUDA graph" in name else call
            for result in measured(calls, leaves, want, 0.02 if dtype is torch.bfloat16 else 1e-4, device):
                found.append({"norm": "SyncBatchNorm", "shape": list(shape), "dtype": str(dtype)[6:], **result})
                show(found[-1])
            del whole, grads, wide, right, want
    return found


def show(row: dict) -> None:
    """Print a row of the table, on the first rank."""
    if dist.get_rank() == 0:
        shape = " x ".join(map(str, row["shape"]))
        said = row.get("error") or f"{row['us']:10.1f} us"
        if "device_us" in row:
            said += f", {row['device_us']:8.1f} us with a head start for the host"
        if "sent" in row:
            said += f", {row['collectives']} collectives, {row['sent']:,} bytes sent, {row['received']:,} received"
        print(f"{row['norm']:30} {shape:20} {row['dtype']:9} {row['contender']:24} {said}", flush=True)


def main() -> None:
    """Measure, print, and write a record if a file is named."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("out", nargs="?")
    arguments.add_argument("--small", action="store_true", help="shapes for a CPU")
    given = arguments.parse_args()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if torch.cuda.device_count() > local:
        torch.cuda.set_device(local)
        device, backend = torch.device("cuda", local), "nccl"
    else:
        device, backend = torch.device("cpu"), "gloo"
        torch.set_num_threads(1)
    dist.init_process_group(backend)
    rows, columns = (64, 256) if given.small else (ROWS, COLUMNS)
    shapes = [(4, 8, 6, 6), (2, 16, 5, 5)] if given.small else list(SHAPES)
    found = rows_table(rows, columns, device) + batches_table(shapes, device)
    if given.out and dist.get_rank() == 0:
        command = f"torchrun --nproc-per-node {dist.get_world_size()} -m tests.hardware.distributed {given.out}"
        with open(given.out, "w") as file:
            json.dump({"what": "distributed", **provenance(), "command": command, "rows": found}, file, indent=1)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
