"""The ranks of `test_ranks`: small models with replaced norms, trained for three steps under DDP and FSDP2.

    python ranks.py WORLD FILE

FILE is where the ranks meet, with gloo. They are forked from one process that has imported all, which takes longer than
all they do.
Ends with another exit code than 0 unless the parameters are those of the untouched model, trained by one process with
the whole batch.
"""

import copy
import sys

import torch
import torch.distributed as dist
from foreign.architectures import ARCHITECTURES
from foreign.samples import MODES, close
from foreign.test_architectures import drawn, replaced
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

NAMES = ("Llama", "Bert")


def trained(model: torch.nn.Module, whole: torch.nn.Module, batch: torch.Tensor) -> list[torch.Tensor]:
    """Return the whole's parameters after three steps of AdamW with the model, which has them or wraps it."""
    steps = torch.optim.AdamW(whole.parameters(), lr=1e-3, eps=1e-2)
    for _ in range(3):
        steps.zero_grad()
        model(batch).square().mean().backward()
        steps.step()
    return [parameter.detach() for parameter in whole.parameters()]


def sharded(model: torch.nn.Module) -> torch.nn.Module:
    """Shard a model's norms, each alone, and the rest together."""
    for module in model.modules():
        if type(module).__module__.startswith("normlab."):
            fully_shard(module)
    return fully_shard(model)


def main(rank: int, world: int, file: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world)
    for name in NAMES:
        for mode in MODES:
            model, _ = drawn(name, mode)
            batch = torch.cat([ARCHITECTURES[name].draw() for _ in range(world)])
            mine = batch[2 * rank : 2 * rank + 2]
            theirs, truth = copy.deepcopy(model), copy.deepcopy(model).double()
            wanted = trained(theirs, theirs, batch), trained(truth, truth, batch)
            parallel = replaced(model, mode)
            close(trained(DistributedDataParallel(parallel, find_unused_parameters=True), parallel, mine), *wanted)
            parts = sharded(replaced(model, mode))
            close([one.full_tensor() for one in trained(parts, parts, mine)], *wanted)
    dist.destroy_process_group()


if __name__ == "__main__":
    count = int(sys.argv[1])
    torch.multiprocessing.start_processes(main, (count, sys.argv[2]), count, start_method="fork")
