"""The norms of rows whose columns are sharded over ranks, of plain tensors (`rows`) and of DTensors (`tensors`)."""

from collections.abc import Callable

from torch import Tensor

from normlab.distributed import rows
from normlab.distributed.rows import Group
from normlab.nn.private import PLAIN
from normlab.nn.shapes import MemoryEfficient, Parameter


def sharded_layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    group: Group = None,
    eps: float = 1e-5,
    *,
    memory_efficient: MemoryEfficient = False,
) -> Tensor:
    """Return this rank's columns of the LayerNorm over a last dimension that a group's ranks share.

    All ranks of the group call it together, and their backwards, too. The statistics have the same bits on all of them.

    Args:
        x: (*leading, columns), this rank's columns, float16, bfloat16, float32 or float64. Ranks may have different
            numbers of columns, also 0. leading and dtype are the same on all ranks. A DTensor gives a DTensor with the
            same placements: its mesh is the group if its last dimension is sharded; else its rows are normalised where
            they are.
        weight, bias: (columns,), this rank's part; each may be None. Beside a DTensor they may be DTensors.
        group: the ranks that share the rows; None: all ranks. Beside a DTensor it must be None.
        eps: added to the biased variance.
        memory_efficient: what the backward keeps, as in `normlab.nn.layer_norm`. Compiled code takes "exact" for False,
            which has the same gradients.

    Returns:
        (*leading, columns), in the parameters' dtype, or x's without parameters.

    Raises:
        RuntimeError, TypeError, ValueError: this rank's arguments are wrong, as in `normlab.nn.layer_norm`.
        ValueError: shapes, dtypes or options differ between ranks. All ranks raise it.
        RuntimeError: another rank raised an error, or did not come within the group's timeout. The message names it.

    >>> import os, tempfile
    >>> from torch import distributed, tensor
    >>> meet = f"file://{os.path.join(tempfile.mkdtemp(), 'meet')}"
    >>> distributed.init_process_group("gloo", init_method=meet, rank=0, world_size=1)
    >>> sharded_layer_norm(tensor([[1.0, 2.0, 3.0]]), eps=0.0)  # the whole row on one rank
    tensor([[-1.2247,  0.0000,  1.2247]])
    >>> distributed.destroy_process_group()
    """
    return _norm(sharded_layer_norm, x, weight, bias, group, eps, False, memory_efficient)


def sharded_rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    group: Group = None,
    eps: float = 1e-6,
    *,
    memory_efficient: MemoryEfficient = False,
) -> Tensor:
    """Return this rank's columns of the RMSNorm over a last dimension that a group's ranks share.

    Arguments, result and errors are those of `sharded_layer_norm`, without a bias.
    """
    return _norm(sharded_rms_norm, x, weight, None, group, eps, True, memory_efficient)


def _norm(
    function: Callable[..., Tensor],
    x: Tensor,
    weight: Parameter,
    bias: Parameter,
    group: Group,
    eps: float,
    rms: bool,
    memory_efficient: MemoryEfficient,
) -> Tensor:
    if type(x) not in PLAIN and type(x).__name__ == "DTensor":  # known by name, because importing it takes up to 1 s
        from normlab.distributed import tensors

        return tensors.norm(function, x, weight, bias, group, eps, rms, memory_efficient, "apex")
    return rows.norm(function, x, weight, bias, group, eps, rms, memory_efficient)
