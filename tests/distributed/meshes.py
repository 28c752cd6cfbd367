"""DTensors, ShardedNorm and compiled code on each rank, for the tests of `normlab.distributed`."""

import copy

import numpy as np
import torch
import torch.distributed as dist
from distributed.noted import sent
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import layer_norm, rms_norm

from normlab import nn
from normlab.distributed import ShardedNorm, SyncBatchNorm, sharded_layer_norm, sharded_rms_norm

NORMS = {
    "torch layer": torch.nn.LayerNorm,
    "torch rms": torch.nn.RMSNorm,
    "layer": lambda n: nn.FusedLayerNorm(n, memory_efficient=True),
    "rms": lambda n: nn.FusedRMSNorm(n, memory_efficient="exact"),
}
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def model(kind: str, hidden: int) -> torch.nn.Sequential:
    torch.manual_seed(0)
    made = torch.nn.Sequential(torch.nn.Linear(5, hidden), NORMS[kind](hidden), torch.nn.Linear(hidden, 3))
    for parameter in made[1].parameters():
        torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return made


def tensor_parallel(group, kind: str, hidden: int, local: bool) -> None:
    """A model with ColwiseParallel, ShardedNorm and RowwiseParallel is the model on one process."""
    mesh = DeviceMesh.from_group(group, "cpu")
    whole = model(kind, hidden)
    styles = {"0": ColwiseParallel(use_local_output=local), "1": ShardedNorm(use_local_output=local)}
    if local:
        styles["0"] = ColwiseParallel()
    shared = parallelize_module(copy.deepcopy(whole), mesh, styles | {"2": RowwiseParallel()})
    shared = copy.deepcopy(shared)
    x = torch.randn(4, 2, 5, generator=torch.Generator().manual_seed(1))
    want, got = whole(x), shared(x)
    torch.testing.assert_close(got, want, **CLOSE)
    for output in (want, got):
        output.square().sum().backward()
    for one, other in zip(shared.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one.grad.full_tensor(), other.grad, **CLOSE)
    assert all(one.placements == (Shard(0),) for one in shared[1].parameters())


def direct(group, shape: tuple[int, ...], placements: tuple, rms: bool, mesh_shape: tuple[int, ...]) -> list:
    """A DTensor's norm and gradients are those of one process, with the same placements; returns what was sent."""
    mesh = DeviceMesh.from_group(group, "cpu") if len(mesh_shape) == 1 else init_device_mesh("cpu", mesh_shape)
    torch.manual_seed(0)
    n = shape[-1]
    tensors = torch.randn(shape), torch.randn(n), torch.randn(n)
    grad = torch.randn(shape)
    plain = [one.clone().requires_grad_() for one in tensors]
    whole = rms_norm(plain[0], (n,), plain[1], 1e-6) if rms else layer_norm(plain[0], (n,), *plain[1:])
    whole.backward(grad)
    x, *parameters = (
        distribute_tensor(one, mesh, places).requires_grad_()
        for one, places in zip(tensors, (placements, *[[Replicate()] * mesh.ndim] * 2), strict=True)
    )
    outputs: list[DTensor] = []

    def forward_and_backward():
        outputs.append(sharded_rms_norm(x, parameters[0]) if rms else sharded_layer_norm(x, *parameters))
        outputs[0].backward(distribute_tensor(grad, mesh, placements))

    sends = sent(forward_and_backward)
    assert outputs[0].placements == x.placements
    assert x.grad.placements == kept_by_torch(x)
    assert outputs[0].shape == whole.shape
    torch.testing.assert_close(outputs[0].full_tensor(), whole, **CLOSE)
    for one, other in zip((x, *parameters[: 1 if rms else 2]), plain, strict=False):
        torch.testing.assert_close(one.grad.full_tensor(), other.grad, **CLOSE)
    return [count for _, count in sends]


def kept_by_torch(x: DTensor) -> tuple:
    """The placements that PyTorch itself gives a leaf's gradient: 2.11 replicates an unevenly sharded one."""
    leaf = x.detach().requires_grad_()
    leaf.to_local(grad_placements=x.placements).sum().backward()
    return leaf.grad.placements


def refused(group) -> list[str]:
    """The errors of ShardedNorm and of DTensors."""
    from distributed.failures import told
    from torch.distributed.tensor import Partial

    mesh = DeviceMesh.from_group(group, "cpu")
    x = DTensor.from_local(torch.ones(2, 4), mesh, [Partial()])
    style = ShardedNorm()
    return [
        told(sharded_rms_norm, x)[:2],
        told(sharded_rms_norm, x, None, group)[:2],
        told(parallelize_module, torch.nn.Linear(2, 2), mesh, style)[:2],
        told(parallelize_module, torch.nn.LayerNorm((2, 2)), mesh, style)[:2],
        [told(parallelize_module, one, mesh, style)[:2] for one in (nn.RMSNorm(8, offset=1.0), nn.AddRMSNorm(8))],
    ]


def compiled(group, rms: bool, mode, backend: str = "aot_eager") -> tuple[bool, list[str]]:
    """Does compiled code return eager code's bits? And the collectives of its graphs."""
    from torch._dynamo.backends.common import aot_autograd

    operators = []

    def noting(graph, _):
        operators.extend(str(node.target) for node in graph.graph.nodes if "c10d" in str(node.target))
        return graph

    def function(x, weight, bias):
        if rms:
            return sharded_rms_norm(x, weight, group, memory_efficient=mode)
        return sharded_layer_norm(x, weight, bias, group, memory_efficient=mode)

    torch.manual_seed(dist.get_rank(group))
    made = torch.randn(6, 5), torch.rand(5) + 0.5, torch.randn(5)
    found = []
    torch._dynamo.reset()
    whole = torch.compile(function, fullgraph=True, backend=aot_autograd(fw_compiler=noting, bw_compiler=noting))
    for run in (function, whole):
        leaves = [one.clone().requires_grad_() for one in made]
        output = run(*leaves)
        output.square().sum().backward()
        found.append([output.detach(), *(one.grad for one in leaves if one.grad is not None)])
    close = all(torch.allclose(one, other, rtol=1e-5, atol=1e-6) for one, other in zip(*found, strict=True))
    return close, operators


def compiled_batch_norm(group) -> bool:
    """Does a compiled SyncBatchNorm return what the eager one returns, and keep the same running statistics?"""
    torch._dynamo.reset()
    torch.manual_seed(dist.get_rank(group))
    x = torch.randn(3, 4, 5)
    found = []
    for compile in (lambda one: one, lambda one: torch.compile(one, fullgraph=True, backend="aot_eager")):
        module = SyncBatchNorm(4, process_group=group)
        mine = x.clone().requires_grad_()
        output = compile(module)(mine)
        output.square().sum().backward()
        found.append([output.detach(), mine.grad, module.weight.grad, module.running_mean, module.running_var])
    return all(torch.allclose(one, other, rtol=1e-5, atol=1e-6) for one, other in zip(*found, strict=True))


def compiled_for_two_eps(group) -> list[bool]:
    """Does compiled code take an eps that changes from call to call, as a number and as a module's attribute?"""
    torch._dynamo.reset()
    torch.manual_seed(dist.get_rank(group))
    x, module = torch.randn(3, 4), SyncBatchNorm(4, process_group=group)

    def rows(eps):
        return sharded_layer_norm(x, None, None, group, eps)

    def batch(eps):
        module.eps = eps
        return module(x)

    return [
        torch.allclose(torch.compile(run, fullgraph=True, backend="aot_eager")(eps), run(eps), rtol=1e-5, atol=1e-6)
        for run in (rows, batch)
        for eps in (0.1, 0.5, 0.9)
    ]


def of_subgroups(group, x: np.ndarray) -> np.ndarray:
    """The norm of rows over ranks (0, 2) and (1, 3), each pair with rows of its own: this rank's columns."""
    rank = dist.get_rank(group)
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = np.split(x[rank % 2], 2, axis=-1)[rank // 2]
    return sharded_layer_norm(torch.from_numpy(mine), None, None, pairs[rank % 2]).numpy()
