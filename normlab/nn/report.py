"""The report of `normlab.nn.replace_norms`: the norms of a model before and after, and the bytes saved."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from normlab.nn.stand_in import become


class Report(list[tuple[str, type, type]]):
    """The list of replaced norms: (name, old class, normlab's class). Its `str` is a table of all norms.

    left: norms that stay, as (name, class, reason). missed: modules that look like a norm but were not recognised, as
    (name, class, reason). switched: norms of normlab's with a new memory_efficient, as (name, class, the old one).
    fused: layers whose additions and norms are one call, as (name, class, sites). A site is (the norm's name, "added"
    or "passed"): the addition before the norm is in the call, or the stream past it. unfused: other modules that hold
    norms of normlab's, as (name, class, reason). Both are empty without fuse_residual.
    """

    def __init__(self, model: torch.nn.Module, memory_efficient: Any) -> None:
        super().__init__()
        self.left: list[tuple[str, type, str]] = []
        self.missed: list[tuple[str, type, str]] = []
        self.switched: list[tuple[str, type, Any]] = []
        self.fused: list[tuple[str, type, tuple[tuple[str, str], ...]]] = []
        self.unfused: list[tuple[str, type, str]] = []
        self._model, self._mode = model, f"memory_efficient={memory_efficient!r}"

    @property
    def replaced(self) -> list[tuple[str, type, type]]:
        """Return the report's own items as a plain list."""
        return list(self)

    @property
    def refused(self) -> list[tuple[str, type, str]]:
        """Return `left` under its former name."""
        return self.left

    def bytes_saved(self, *inputs: Any, **named: Any) -> int:
        """Return how many bytes fewer autograd keeps after a forward of the model than it kept with the old norms.

        Every storage that the model's forward saves for a backward counts once, so an output that the next layer keeps
        anyway costs nothing. Parameters, buffers and the inputs do not count. The model runs twice with its hooks, in
        training or evaluation mode as it is. Buffers and random numbers are set back afterwards.

        Args:
            inputs, named: the arguments of the model's forward.
        """
        now = self._kept(inputs, named)
        with _as_before(self._model):
            before = self._kept(inputs, named)
        return before - now

    def _kept(self, inputs: Any, named: Any) -> int:
        """Return the bytes of all storages that a forward of the model saves, except those that exist anyway."""
        model = self._model
        held = [*model.parameters(), *model.buffers(), *_tensors(inputs), *_tensors(named)]
        gpus = list({tensor.device for tensor in held if tensor.is_cuda})
        buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
        with torch.random.fork_rng(gpus), torch.enable_grad():
            known = {StorageWeakRef(tensor.untyped_storage()) for tensor in held}
            saved: dict[StorageWeakRef, int] = {}

            def pack(tensor: Tensor) -> Tensor:
                storage = tensor.untyped_storage()
                saved[StorageWeakRef(storage)] = storage.nbytes()
                return tensor

            try:
                with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                    output = model(*inputs, **named)  # noqa: F841  # lives until the saved storages are counted
                return sum(size for storage, size in saved.items() if storage not in known)
            finally:
                with torch.no_grad():
                    for buffer, value in buffers:  # as batch norm's running statistics
                        buffer.copy_(value)

    def __str__(self) -> str:
        """Return the table: a row for each norm, then how many norms were replaced, switched, left and missed."""
        # Norms over rows have a mode, and a `dtype_rule`; the family's have neither.
        modes = {name: f", {self._mode}" for name, _, new in self if hasattr(new, "dtype_rule")}
        rows = [(name, old, new.__name__ + modes.get(name, "")) for name, old, new in self]
        rows += [(name, kind, f"{self._mode}, was {mode!r}") for name, kind, mode in self.switched]
        rows += [(name, kind, f"left: {why}") for name, kind, why in self.left]
        rows += [(name, kind, f"missed: {why}") for name, kind, why in self.missed]
        if not rows and not self.fused:
            return "no norms"
        rows += [(name, kind, f"fused: {_said(sites)}") for name, kind, sites in self.fused]
        rows += [(name, kind, f"not fused: {why}") for name, kind, why in self.unfused]
        table = [("name", "class", "outcome"), *((name, kind.__name__, outcome) for name, kind, outcome in rows)]
        widths = [max(len(row[column]) for row in table) for column in (0, 1)]
        lines = [f"{name:{widths[0]}}  {kind:{widths[1]}}  {outcome}" for name, kind, outcome in table]
        counts = {"replaced": self, "switched": self.switched, "left": self.left, "missed": self.missed}
        if self.fused or self.unfused:
            counts |= {"layers fused": self.fused, "not fused": self.unfused}
        return "\n".join([*lines, ", ".join(f"{len(norms)} {what}" for what, norms in counts.items())])


def _said(sites: tuple[tuple[str, str], ...]) -> str:
    """Return the fused calls of a layer in words."""
    words = {"added": "addition and {}", "passed": "{} and the stream past it"}
    return ", ".join(words[call].format(norm) for norm, call in sites)


@contextmanager
def _as_before(model: torch.nn.Module) -> Iterator[None]:
    """Give the model its old norms for the length of a `with` block."""
    norms = {norm: type(norm) for norm in model.modules() if "made_of" in vars(norm)}
    for norm in norms:
        become(norm, vars(norm)["made_of"][0])
    try:
        yield
    finally:
        for norm, kind in norms.items():
            become(norm, kind)


def _tensors(given: Any) -> Iterator[Tensor]:
    """Yield all tensors in an argument, also those in lists, tuples and dicts."""
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, (list, tuple, Mapping)):
        for one in given.values() if isinstance(given, Mapping) else given:
            yield from _tensors(one)
