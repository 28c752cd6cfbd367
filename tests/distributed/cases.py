"""What the tests of `normlab.distributed` run on each rank. Tensors go to the test and back as NumPy arrays."""

from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from nn.norms import array, tensor
from torch.utils.checkpoint import checkpoint

from normlab import nn
from normlab.distributed import sharded_layer_norm, sharded_rms_norm
from normlab.host.arrays import HostBackend


def cut(values, sizes: tuple[int, ...], rank: int):
    """A rank's columns of an array (..., columns); None for None."""
    first = sum(sizes[:rank])
    return None if values is None else values[..., first : first + sizes[rank]]


def joined(parts: list) -> list:
    """The whole arrays of all ranks' parts; None for None."""
    return [None if one[0] is None else np.concatenate(one, axis=-1) for one in zip(*parts, strict=True)]


def norm(group, leaves, rms: bool, eps: float, mode):
    """The sharded norm of tensors (x, weight, bias)."""
    if rms:
        return sharded_rms_norm(*leaves[:2], group, eps, memory_efficient=mode)
    return sharded_layer_norm(*leaves, group, eps, memory_efficient=mode)


def by_kernels(function, *given) -> tuple:
    """What a function returns by normlab's kernels, in the simulator, and the names of the kernels that ran."""
    names = []

    def launch(kernel, *rest, **more):
        names.append(kernel.py_func.__name__)
        return launched_by(kernel, *rest, **more)

    launched_by = HostBackend.launch
    with nn.engine("simulator"), patch.object(HostBackend, "launch", staticmethod(launch)):
        return *function(*given), names


def simulated(group, *given) -> tuple:
    """`of_case` by normlab's kernels."""
    return by_kernels(of_case, group, *given)


def of_case(group, case, sizes: tuple[int, ...], mode, recomputed: bool = False) -> tuple:
    """(output, grad_input, grad_weight, grad_bias) of this rank's columns; recomputed: in a checkpoint."""
    rank = dist.get_rank(group)
    leaves = [tensor(cut(one, sizes, rank), requires_grad=True) for one in (case.x, case.weight, case.bias)]
    if recomputed:
        output = checkpoint(norm, group, leaves, case.rms, case.eps, mode, use_reentrant=False)
    else:
        output = norm(group, leaves, case.rms, case.eps, mode)
    output.backward(tensor(cut(case.grad_output, sizes, rank)))
    return array(output), *(None if leaf is None else array(leaf.grad) for leaf in leaves)


def by_sums_of_squares(group, x, sizes: tuple[int, ...], eps: float):
    """This rank's columns of a LayerNorm by all-reduced sums of x and of x²."""
    values = tensor(cut(x, sizes, dist.get_rank(group)))
    sums = torch.stack((values.sum(-1), values.square().sum(-1))) / sum(sizes)
    dist.all_reduce(sums, group=group)
    return array((values - sums[0, :, None]) * (sums[1] - sums[0] ** 2 + eps).rsqrt()[:, None])


def heads(group, x, weight, by_head: bool) -> np.ndarray:
    """A per-head RMSNorm of (tokens, heads, head size), with heads or head sizes sharded evenly."""
    axis, size = (1, x.shape[1]) if by_head else (2, x.shape[2])
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    mine = np.split(np.arange(size), ranks)[rank]
    values = torch.from_numpy(x.take(mine, axis))
    if by_head:
        return nn.rms_norm(values, values.shape[-1:], torch.from_numpy(weight), 1e-6).numpy()
    return sharded_rms_norm(values, torch.from_numpy(weight[mine]), group).numpy()


def under_autocast(group, x) -> str:
    """The output's dtype under autocast to bfloat16."""
    with torch.autocast("cpu", torch.bfloat16):
        return str(sharded_layer_norm(torch.from_numpy(x), None, None, group).dtype)


def twice_differentiated(group, x) -> str:
    """The error of a second derivative."""
    values = torch.from_numpy(x).requires_grad_()
    try:
        torch.autograd.grad(sharded_rms_norm(values, None, group).sum(), values, create_graph=True)
    except NotImplementedError as error:
        return str(error)
    return ""
