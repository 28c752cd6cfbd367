"""SyncBatchNorm on each rank, for the tests of `normlab.distributed`."""

import numpy as np
import torch
import torch.distributed as dist
from distributed.cases import by_kernels
from distributed.failures import told
from distributed.noted import sent
from nn.norms import array, tensor

from normlab import nn
from normlab.distributed import SyncBatchNorm


def samples(values: np.ndarray, sizes: tuple[int, ...], rank: int, last: bool) -> torch.Tensor:
    """A rank's samples of an array (N, C, ...), with channels last in memory or not."""
    first = sum(sizes[:rank])
    made = tensor(values[first : first + sizes[rank]])
    return made.movedim(1, -1).contiguous().movedim(-1, 1) if last else made


def steps(tensor: torch.Tensor) -> list[int]:
    """The strides of a tensor, of axes longer than 1."""
    return [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1 and tensor.numel()]


def module(group, weight, bias, running, momentum=0.1, eps=1e-5) -> SyncBatchNorm:
    """A SyncBatchNorm with these parameters and running statistics, as arrays; None: without."""
    made = SyncBatchNorm(len(running[0]), eps, momentum, process_group=group)
    made.weight, made.bias = (None if one is None else torch.nn.Parameter(tensor(one)) for one in (weight, bias))
    made.running_mean, made.running_var = map(tensor, running)
    return made


def of_batch(group, x, weight, bias, grad_output, running, sizes, last=False) -> tuple:
    """(output, grad_input, grad_weight, grad_bias, running_mean, running_var) of this rank's samples.

    The strides of output and grad_input must be the input's.
    """
    rank = dist.get_rank(group)
    made = module(group, weight, bias, running)
    mine = samples(x, sizes, rank, last).requires_grad_()
    output = made(mine)
    output.backward(samples(grad_output, sizes, rank, False))
    assert steps(output) == steps(mine) == steps(mine.grad)
    grads = (None if one is None else array(one.grad) for one in (made.weight, made.bias))
    return array(output), array(mine.grad), *grads, array(made.running_mean), array(made.running_var)


def in_place(group, x, sizes) -> list:
    """(output, grad_input) after a ReLU that changes the output in place, then after one that does not."""
    found = []
    for relu in (torch.relu_, torch.relu):
        made, mine = SyncBatchNorm(x.shape[1], process_group=group), samples(x, sizes, dist.get_rank(group), False)
        output = relu(made(mine.requires_grad_()))
        output.square().sum().backward()
        found += [array(output), array(mine.grad)]
    return found


def simulated(group, *given) -> tuple:
    """`of_batch` by normlab's kernels, in the simulator; the names of the kernels that ran are added."""
    return by_kernels(of_batch, group, *given)


def sends(group, channels: int) -> list:
    """What a forward and a backward send; then what an evaluation sends."""
    made = SyncBatchNorm(channels, process_group=group)
    x = torch.randn(3, channels, 5, requires_grad=True)
    trained = sent(lambda: made(x).sum().backward())
    return [trained, sent(lambda: made.eval()(x))]


def trained(group, x, sizes) -> list:
    """The parameters and buffers of a converted model after three steps under DistributedDataParallel."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6, momentum=None), torch.nn.Tanh(), nn.BatchNorm1d(6)
    ).double()
    model = SyncBatchNorm.convert_sync_batchnorm(model, group)
    assert [type(one) for one in model][1::2] == [SyncBatchNorm] * 2
    parallel = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    mine = samples(x, sizes, dist.get_rank(group), False)
    share = dist.get_world_size(group) * mine.shape[0] / len(x)  # DDP averages over ranks, which are not equal
    for _ in range(3):
        model.zero_grad()
        (parallel(mine).pow(3).mean() * share).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
    return [array(one.double()) for one in (*model.parameters(), *model.buffers())]


def disagreements(group) -> list:
    """Channels that differ, a wrong input on one rank, a dtype that differs: (type, message, seconds) each."""
    odd = dist.get_rank(group) == 1
    five, wide = SyncBatchNorm(5 + odd, process_group=group), SyncBatchNorm(5, process_group=group)
    return [
        told(five, torch.ones(2, 5 + odd)),
        told(wide, torch.ones(2, 5 + odd)),
        told(wide, torch.ones(2, 5, dtype=torch.float16 if odd else torch.float32)),
        told(wide, torch.ones(2, 5)),
    ]


def nothing_anywhere(group) -> tuple:
    """The output's shape and the running statistics if no rank has a sample."""
    made = module(group, np.ones(3), np.ones(3), (np.full(3, 2.0), np.full(3, 4.0)))
    output = made(torch.empty(0, 3, 2, dtype=torch.float64))
    return tuple(output.shape), array(made.running_mean), array(made.running_var)
