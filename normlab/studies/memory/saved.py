"""Count what autograd keeps for the backward. Works on the CPU as on a GPU, and is exact."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


@contextmanager
def counting(held: Iterable[Tensor]) -> Iterator[dict[int, int]]:
    """Yield the bytes that a forward inside the `with` block saves: {address: bytes}, a storage once.

    A tensor that two operations save, or views of, is one storage. held: tensors that are there anyway, parameters and
    the batch: they do not count.

    >>> import torch
    >>> x = torch.ones(3, requires_grad=True)
    >>> with counting([x]) as saved:
    ...     y = x.exp() * x  # exp saves its result, the product both of its factors
    >>> sum(saved.values())
    12
    """
    saved: dict[int, int] = {}
    known = {_address(tensor) for tensor in held}

    def pack(tensor: Tensor) -> Tensor:
        if _address(tensor) not in known and tensor.numel():
            saved[_address(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        yield saved


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
