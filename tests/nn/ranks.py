"""The ranks of `test_distributed`: a model with norms of every mode under DDP, FSDP2 and sequence parallelism.

    python ranks.py WORLD FILE DEVICE

DEVICE is cpu, with gloo, or cuda, with NCCL and a GPU for each rank.

FILE is where the ranks meet. Those of the CPU are forked from one process that has imported torch, which takes longer
than all they do; a GPU does not allow that.
Ends with another exit code than 0 unless the gradients are those of one process with the whole batch.
"""

import copy
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from normlab import nn


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    made = torch.nn.Sequential(
        torch.nn.Linear(8, 8),
        nn.FusedLayerNorm(8),
        torch.nn.Linear(8, 8),
        nn.FusedLayerNorm(8, memory_efficient=True),
        torch.nn.Linear(8, 8),
        nn.FusedRMSNorm(8, memory_efficient="exact"),
    )
    for parameter in made.parameters():
        torch.nn.init.uniform_(parameter, -1.0, 1.0)
    with torch.no_grad():
        made[5].weight[2] = 0  # a column that is kept
    return made


def hold_sequence_parallel(mesh, rank: int, batch: torch.Tensor) -> None:
    """Norms of rows that lie on several ranks, as DTensors, give what they give on one."""
    norms = model()[3::2].to(batch.device)
    shares = parallelize_module(copy.deepcopy(norms), mesh, {"3": SequenceParallel(), "5": SequenceParallel()})
    want, got = norms(batch[None]), shares(batch[None, 4 * rank : 4 * rank + 4])
    for output in (want, got):
        output.square().sum().backward()
    torch.testing.assert_close(got.full_tensor(), want)
    for one, other in zip(shares.parameters(), norms.parameters(), strict=True):
        torch.testing.assert_close(one.grad.full_tensor(), other.grad, rtol=1e-4, atol=1e-5)


def main(rank: int, world: int, file: str, device: str) -> None:
    torch.set_num_threads(1)
    backend = "gloo"
    if device == "cuda":
        torch.cuda.set_device(rank)
        backend = "nccl"
    dist.init_process_group(backend, init_method=f"file://{file}", rank=rank, world_size=world)
    torch.manual_seed(1)
    batch = torch.randn(4 * world, 8).to(device)
    mine = batch[4 * rank : 4 * rank + 4]
    alone = model().to(device)
    alone(batch).square().mean().backward()
    wanted = [parameter.grad for parameter in alone.parameters()]

    parallel = DistributedDataParallel(model().to(device))
    parallel(mine).square().mean().backward()
    sharded = model().to(device)
    mesh = init_device_mesh(device, (world,))
    for layer in sharded:
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    sharded(mine).square().mean().backward()
    whole = [parameter.grad.full_tensor() for parameter in sharded.parameters()]
    for got in ([parameter.grad for parameter in parallel.parameters()], whole):
        for one, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    late = fully_shard(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)).to(device), mesh=mesh)
    ((name, _, why),) = nn.replace_norms(late).left
    assert (name, why.split(":")[1]) == ("1", " replace norms before fully_shard")
    late(mine).sum().backward()
    hold_sequence_parallel(mesh, rank, batch)
    dist.destroy_process_group()


if __name__ == "__main__":
    count, method = int(sys.argv[1]), "fork" if sys.argv[3] == "cpu" else "spawn"
    torch.multiprocessing.start_processes(main, (count, *sys.argv[2:]), count, start_method=method)
