"""For the tests of normlab.nn: cases of `draws` run through PyTorch, and the bounds of what comes back."""

import examine
import ml_dtypes
import numpy as np
import torch
from draws import Case
from examine import (
    backward_bound,
    backward_truth,
    columns_at_risk,
    forward_bound,
    forward_truth,
    hold,
    spread_of,
    statistics,
)
from functorch.compile import make_boxed_compiler
from torch._dynamo.backends.common import aot_autograd

from normlab import nn, oracle
from normlab.host import checks
from normlab.host.exact import Kept
from normlab.kernels.exact.risk import limits

MODES = (False, True, "exact")


class Named(torch.Tensor):
    """Gives the function that it was given to, the number of arguments, and those with names."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        """Call nothing."""
        return function, len(args), kwargs


def counts_saved(shape: tuple[int, ...]) -> tuple:
    """A backend of torch.compile, and a list to which it adds how many tensors of a shape each forward gives or saves.

    A view of a tensor is no other tensor.
    """
    counted: list[int] = []

    def count(graph, _):
        (outputs,) = (node.args[0] for node in graph.graph.nodes if node.op == "output")
        memory = {node.args[0] if node.target is torch.ops.aten.detach.default else node for node in outputs}
        counted.append(len([node for node in memory if tuple(node.meta["val"].shape) == shape]))
        return graph

    forward, backward = map(make_boxed_compiler, (count, lambda graph, _: graph))
    return aot_autograd(fw_compiler=forward, bw_compiler=backward), counted


def tensor(array: np.ndarray | None, requires_grad: bool = False) -> torch.Tensor | None:
    """A NumPy array as a tensor of its dtype."""
    if array is None:
        return None
    made = torch.from_numpy(array.astype(np.float64, order="C", copy=True)).to(getattr(torch, array.dtype.name))
    return made.requires_grad_(requires_grad)


def array(tensor: torch.Tensor | None) -> np.ndarray | None:
    """A tensor as a NumPy array of its dtype."""
    if tensor is None:
        return None
    dtype = np.dtype(getattr(ml_dtypes, "bfloat16")) if tensor.dtype == torch.bfloat16 else None  # noqa: B009
    return tensor.detach().double().numpy().astype(dtype or str(tensor.dtype).removeprefix("torch."))


def apply(case: Case, x, weight, bias, memory_efficient):
    """The output of a case's norm on tensors."""
    if case.rms:
        return nn.rms_norm(x, case.n2, weight, case.eps, memory_efficient)
    return nn.layer_norm(x, case.n2, weight, bias, case.eps, memory_efficient)


def through_torch(case: Case, memory_efficient) -> tuple:
    """(output, (grad_input, grad_weight, grad_bias)) of a case, as arrays."""
    leaves = [tensor(values, requires_grad=True) for values in (case.x, case.weight, case.bias)]
    output = apply(case, *leaves, memory_efficient)
    output.backward(tensor(case.grad_output))
    return array(output), tuple(None if leaf is None else array(leaf.grad) for leaf in leaves)


def arithmetic(case: Case) -> oracle.Arithmetic:
    """How `normlab.nn.vectorised` computes, in the oracle's words: sums in any order, statistics by Welford."""
    n1, n2 = case.x.shape
    return examine.arithmetic(case, (n2 + 4, 0), (max(1, n1) + 1, 0), "welford")


def at_risk(case: Case) -> np.ndarray:
    """The numbers of the columns at risk."""
    if (case.weight is None and case.bias is None) or not len(case.x):
        return np.arange(0)
    eps = checks.rounded_eps(case.eps, checks.statistics_dtype(case.x.dtype.name))
    spread = spread_of(statistics(case)[2], float(eps))
    return columns_at_risk(case.weight, case.bias, limits(eps, case.grad_output.dtype.name), spread)


def hold_to_bounds(case: Case, memory_efficient, output, gradients) -> None:
    """Assert that what came back is within the oracle's bounds."""
    how = arithmetic(case)
    hold("nn output", output, forward_truth(case).output, forward_bound(case, how).output)
    kept = Kept(at_risk(case), None) if memory_efficient == "exact" else None
    bound = backward_bound(case, how, memory_efficient, kept)
    names = ("grad_input", "grad_weight", "grad_bias")
    for name, got, want, limit in zip(names, gradients, backward_truth(case), bound, strict=True):
        hold(f"nn {memory_efficient} {name}", got, want, limit)
