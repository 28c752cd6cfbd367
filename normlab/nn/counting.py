"""What the exact mode counts, and the launches for it, prepared once and used in every count.

A `Norm` is one norm with its columns at risk, as last counted. A `Survey` is one launch that lists the columns of many
norms. `listed_in_graph` lists the columns of one norm in each replay of a CUDA graph.

Called by `normlab.nn.exact`, which says when to count.
"""

import gc
import warnings
import weakref
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from normlab.engine import DeviceArray, Launch, prepare
from normlab.host import checks
from normlab.host.arrays import FLOATS, TorchBackend
from normlab.kernels.exact.choose import launch_choice
from normlab.kernels.exact.risk import limits
from normlab.kernels.exact.spread import launch_spread
from normlab.kernels.exact.survey import Asked, Norms, launch_survey, tabulate
from normlab.nn.formulas import present
from normlab.nn.private import version_of
from normlab.nn.shapes import Owners

HEADROOM = 2  # slots in a CUDA graph per column at risk when the graph is captured
GRAIN = 8  # slots: their number is a multiple of this, and at least this


class Norm:
    """The columns at risk of one norm, as last counted. It does not keep the parameters' memory alive.

    Attributes:
        columns: (count,), int32.
        seen: the step, the stream and the parameters' identities and versions at the last count; empty before it.
        kind: what the norms of one launch share: the parameters' dtype, the limits, and which parameters are given.
        spread: (1,), on the GPU: the spread of x̂, measured in the first forward after a step.
        measured: the step at which the spread was measured.
        tally: three numbers that launches in CUDA graphs write (`choose_columns`); the second is how many columns have
            found no slot. It is pinned memory of the host.
        warned: how many of the columns without a slot `warn` has reported.
        addresses_seen: the parameters' addresses at the last count.
        alone: True if the parameters' memory has moved or was freed between uses, as under FSDP. Only the norm's own
            forward counts its columns then.
        captured: True if a CUDA graph has captured the norm.
        survey, number: the survey that counts this norm, and the norm's number in it.
        stream: the handle of the stream that the norm was last used on.
    """

    def __init__(self, owners: Owners, output_dtype: str, statistics: str, eps: float):
        given = present(owners)
        self.storages = [weakref.ref(one.untyped_storage()) for one in given]
        self.offsets = [one.storage_offset() for one in given]
        self.counters = [_version_counter(one) for one in given]
        self.ids = [id(one) for one in given]
        self.n2, self.device = given[0].numel(), given[0].device
        self.dtype = FLOATS[str(given[0].dtype).removeprefix("torch.")]
        self.eps = checks.rounded_eps(eps, statistics)
        self.limits = limits(self.eps, output_dtype)
        self.kind = self.dtype, self.limits, *[one is not None for one in owners]
        # Without a bias, a small spread puts columns at risk only where outputs become subnormal.
        self.needs_spread = owners[1] is not None or output_dtype == "float16"
        self.spread = torch.ones(1, dtype=getattr(torch, statistics), device=self.device)
        self.tally = torch.zeros(3, dtype=torch.int64, device="cpu", pin_memory=self.device.type == "cuda")
        self._tallied = self.tally.numpy().data  # a view that is read without waiting for the GPU
        self.columns = torch.empty(0, dtype=torch.int32, device=self.device)
        self.seen: tuple = ()
        self.addresses_seen: list[int] = []
        self.alone = self.captured = False
        self.survey: Survey | None = None
        self.number = 0
        self.measured, self.warned = -1, 0
        self._measuring: tuple[int, Launch] | None = None  # the number of rows, and the launch for it
        self.stream = TorchBackend(self.device).stream

    def addresses(self) -> list[int]:
        """Return the parameters' addresses; [] if their memory is freed, or emptied for a time as by FSDP."""
        size, found = self.dtype.itemsize, []
        for reference, offset in zip(self.storages, self.offsets, strict=True):
            storage = reference()
            if storage is not None and storage.nbytes() >= (offset + self.n2) * size:
                found.append(storage.data_ptr() + offset * size)
        there = found if len(found) == len(self.storages) else []
        moved = bool(self.addresses_seen) and there != self.addresses_seen
        self.alone |= not there or moved
        self.addresses_seen = there
        return there

    def note_use(self, stream: int, given: list[Tensor]) -> None:
        """Note the stream and the parameters: other tensors in the same memory have version counters of their own."""
        ids = [id(one) for one in given]
        if (stream, ids) != (self.stream, self.ids):
            self.survey, self.stream = None, stream
        if ids != self.ids:
            self.ids, self.counters = ids, [_version_counter(one) for one in given]

    def take(self, lists: "ColumnLists", number: int) -> None:
        """Take over the columns that a survey has listed for its norm of the given number."""
        start = lists.starts[number]
        self.columns = lists.columns[start : start + lists.counts[number]]
        self.seen = lists.step, self.stream, *self.ids, *lists.versions[number]

    def measure(self, invvar: Tensor) -> None:
        """Queue the launch that measures the spread. It is prepared again when the number of rows changes."""
        backend, rows, measuring = TorchBackend(self.device), invvar.numel(), self._measuring
        if measuring is None or measuring[0] != rows:
            launch = launch_spread(
                prepare, backend.operand(invvar, (rows,)), self.eps, backend.operand(self.spread, (1,))
            )
            launch.patches = ((launch.slots[0], 0, 0),)  # replaced in each call by the address of its invvar
            self._measuring = measuring = rows, launch
        measuring[1](backend.stream, [invvar.data_ptr()])

    def lost(self) -> int:
        """Return how many columns at risk have found no slot in CUDA graphs so far."""
        return self._tallied[1]

    def warn(self, name: str | None = None) -> None:
        """Warn of columns that found no slot in a CUDA graph since the last warning."""
        total = self.lost()
        lost, self.warned = total - self.warned, total
        if lost:
            warnings.warn(
                f"{name or _name_of(self)}: in replays of a CUDA graph {lost} columns at risk found no slot (of "
                f"{HEADROOM} for each column that was at risk before its capture, at least {GRAIN}). They were "
                'recomputed as with memory_efficient=True, not "exact". Capture the graph again.',
                RuntimeWarning,
                stacklevel=2,
            )


def _version_counter(parameter: Tensor) -> Tensor:
    """Return an empty tensor that shares the parameter's version counter, and no memory.

    Inside a custom operator the result of `detach` gets a new counter. Another thread is outside of the operator, so
    `detach` is called there.
    """
    found: list[Tensor] = []
    outside = Thread(target=lambda: found.append(parameter.detach()))
    outside.start()
    outside.join()
    found[0].data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
    return found[0]


class ColumnLists(NamedTuple):
    """The columns at risk of each norm of a survey, as its launch lists them.

    Attributes:
        step: the count of optimizer steps at the launch.
        versions: for each norm the versions of its parameters at the launch.
        columns: int32, the lists of all norms; norm i has `counts[i]` columns from `starts[i]` on.
    """

    step: int
    versions: list[list[int]]
    columns: Tensor
    starts: list[int]
    counts: memoryview


class Survey:
    """A launch that lists the columns of norms of one kind, prepared for the parameters' present addresses.

    lists: those of the latest launch that the host has waited for; None before it.
    """

    def __init__(self, norms: list[Norm]):
        self.norms, first = norms, norms[0]
        self.backend, self.stream = TorchBackend(first.device), torch.cuda.current_stream(first.device)
        # Without a bias the weight's address stands for both, and the other way round.
        asked = [Asked(n.n2, n.addresses_seen[0], n.addresses_seen[-1], n.spread.data_ptr()) for n in norms]
        table, memory, spreads = tabulate(asked, first.dtype, first.eps.dtype, self.backend.index)
        self.table = self.backend.operand(torch.from_numpy(table).to(first.device), table.shape)  # the launches read it
        # The table's first column is each norm's n2, and its last is where the norm's slots begin.
        self.slots, self.starts = int(table[:, 0].sum()), table[:, -1].tolist()
        self.memory = [(part, _address(part())) for norm in norms for part in norm.storages]
        weights, biases = (memory if has else None for has in first.kind[-2:])  # kind ends with: a weight? a bias?
        # Stand-ins for the results, whose addresses each call replaces: an element with the results' shape.
        columns, counts = (self.backend.empty((1,), np.dtype(name)) for name in ("int32", "int64"))
        columns, counts = columns._replace(shape=(self.slots,)), counts._replace(shape=(len(norms),))
        surveyed = Norms(int(table[:, 0].max()), self.table, weights, biases, spreads)
        self.launch = launch_survey(prepare, surveyed, first.limits, columns, counts)
        self.launch.patches = tuple((slot, result, 0) for result, slot in enumerate(self.launch.slots[-2:]))
        self.lists: ColumnLists | None = None
        for number, norm in enumerate(norms):
            norm.survey, norm.number = self, number

    def is_current(self) -> bool:
        """Return True if all parameters still have the addresses that the launch was prepared for."""
        return all(_address(part()) == address for part, address in self.memory)

    def __call__(self, step: int) -> ColumnLists:
        """Queue the launch and return its lists, which the host may read once it has waited for the GPU."""
        versions = [list(map(version_of, norm.counters)) for norm in self.norms]
        device = self.backend.device
        columns = torch.empty(self.slots, dtype=torch.int32, device=device)
        counts = torch.empty(len(self.norms), dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda")
        self.launch(self.backend.stream, [columns.data_ptr(), counts.data_ptr()])
        return ColumnLists(step, versions, columns, self.starts, counts.numpy().data)


def _address(storage: Any) -> int:
    """Return a storage's address; 0 if the storage or its memory has been freed."""
    return 0 if storage is None else storage.data_ptr()


_captured: list[Norm] = []  # never emptied: a CUDA graph writes into their memory as long as it lives


def listed_in_graph(norm: Norm | None, invvar: Tensor, owners: Owners) -> Tensor:
    """Let a CUDA graph list the columns in each replay, and return the slots for them, allocated at its capture."""
    if norm is None or not norm.seen:
        raise RuntimeError(
            'memory_efficient="exact" has to count the columns at risk of new parameters, which a CUDA graph cannot '
            "wait for: run the norm once before the capture"
        )
    norm.captured = True
    _captured.append(norm)
    backend, slots = TorchBackend(norm.device), max(1, -(-HEADROOM * len(norm.columns) // GRAIN)) * GRAIN
    columns = torch.empty(slots, dtype=torch.int32, device=norm.device)
    if 2 * slots > norm.n2:
        return columns  # not listed: with so many slots the norm saves its input instead
    weight, bias = (backend.operand(one, (norm.n2,)) for one in owners)
    tally = DeviceArray(norm.tally.data_ptr(), (3,), np.dtype(np.int64), backend.index, norm.tally)  # in pinned memory
    spread, listed = backend.operand(norm.spread, (1,)), backend.operand(columns, (slots,))
    launch_spread(backend.launch, backend.operand(invvar, (invvar.numel(),)), norm.eps, spread)
    launch_choice(backend.launch, norm.n2, weight, bias, spread, norm.limits, listed, tally)
    return columns


def storages(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the names and storages of a module's parameters, except for parameters without a storage."""
    with suppress(AttributeError):  # a module whose __init__ has not run
        for name, parameter in module.named_parameters():
            with suppress(ValueError, RuntimeError, NotImplementedError):  # lazy or sparse
                yield name, parameter.untyped_storage()


def _name_of(norm: Norm) -> str:
    """Return the parameter's longest name in any module, to name it in a warning: searches all live objects."""
    modules = [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module)]  # isinstance wakes proxies
    named = [name for one in modules for name, storage in storages(one) if storage is norm.storages[0]()]
    return max(named, key=len, default=f"a norm of {norm.n2} columns")
