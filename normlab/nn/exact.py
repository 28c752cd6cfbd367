"""The exact mode on a GPU: which columns to keep, counted once after each optimizer step.

One rule: the columns at risk depend on the parameters alone, which change at optimizer steps. So they are counted once
after each step, and the first forward that needs the count waits for it. That forward queues one launch, which lists
the columns of all known norms of its GPU; every other forward compares two integers. It also counts where a
parameter's version or storage shows that something else has changed it. A write through `.data` that no step follows
shows nowhere: call `recount`. What was counted hangs on the storage of the weight (of the bias, without a weight).

While a CUDA graph is captured the host cannot wait. The graph then lists the columns in each replay, into HEADROOM
times as many slots as there were columns at risk, and counts those that found none. The next eager forward of the norm,
or `recount`, warns of them.

One input beside the parameters: the spread of x̂ (`normlab.kernels.exact.spread`), small where the rows of x vary by
less than sqrt(eps). Each norm measures it in its first forward after a step, for the next count.

Called by `normlab.nn.launched`.
"""

import gc
import warnings
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from normlab import arguments
from normlab.arrays import FLOATS, TorchHome
from normlab.engine import DeviceArray, Launch, prepare
from normlab.kernels.exact.choose import launch_choice
from normlab.kernels.exact.risk import limits
from normlab.kernels.exact.spread import launch_spread
from normlab.kernels.exact.survey import Asked, launch_survey, tabulate
from normlab.nn.private import in_a_backward
from normlab.nn.shapes import Owners

HEADROOM = 2  # slots in a CUDA graph for each column at risk at its capture
GRAIN = 8  # slots: at least so many, and a multiple of it


class _Steps:
    count = 0  # of all optimizers


def _after_step(*_: Any) -> None:
    _Steps.count += 1


register_optimizer_step_post_hook(_after_step)


class Norm:
    """The columns at risk of one norm, as last counted. It keeps no memory of the parameters alive.

    columns: (count,), int32. step, version, graphs: of optimizers, parameters and replays, when they were counted.
    """

    def __init__(self, owners: Owners, output_dtype: str, statistics: str, eps: float):
        given = [one for one in owners if one is not None]
        self.storages = [weakref.ref(one.untyped_storage()) for one in given]
        self.offsets = [one.storage_offset() for one in given]
        self.counters = [_version_counter(one) for one in given]
        self.n2, self.device = given[0].numel(), given[0].device
        self.dtype = FLOATS[str(given[0].dtype).removeprefix("torch.")]
        self.eps = arguments.rounded_eps(eps, statistics)
        self.limits = limits(self.eps, output_dtype)
        self.kind = self.dtype, self.limits, *[one is not None for one in owners]  # one launch serves all of a kind
        self.hidden = owners[1] is not None or output_dtype == "float16"  # can a small spread put columns at risk?
        self.spread = torch.ones(1, dtype=getattr(torch, statistics), device=self.device)
        self.tally = torch.zeros(3, dtype=torch.int64, device="cpu", pin_memory=self.device.type == "cuda")
        self.numbers = self.tally.numpy().data  # `choose_columns`'s counts in CUDA graphs, read without waiting
        self.columns = torch.empty(0, dtype=torch.int32, device=self.device)
        self.step = self.version = self.measured = -1
        self.graphs = self.told = 0
        self.measuring: tuple[int, Launch] | None = None  # for so many rows
        self.survey: _Survey | None = None  # that was made for this norm and others, and may be launched again

    def addresses(self) -> list[int] | None:
        """Return where the parameters lie; None if their memory is gone, or given away for a while as FSDP does."""
        found = []
        for reference, offset in zip(self.storages, self.offsets, strict=True):
            storage = reference()
            if storage is None or storage.nbytes() < (offset + self.n2) * self.dtype.itemsize:
                return None
            found.append(storage.data_ptr() + offset * self.dtype.itemsize)
        return found

    def measure(self, invvar: Tensor) -> None:
        """Queue the launch that measures the spread; it is prepared once for each number of rows."""
        home, rows = TorchHome(self.device), invvar.numel()
        if self.measuring is None or self.measuring[0] != rows:
            given = home.operand(invvar, (rows,)), self.eps, home.operand(self.spread, (1,))
            self.measuring = rows, launch_spread(prepare, *given)
            self.measuring[1].patches = ((self.measuring[1].slots[0], 0, 0),)  # each call has an invvar of its own
        self.measuring[1](home.stream, [invvar.data_ptr()])

    def warn(self, name: str | None = None) -> None:
        """Warn of columns that found no slot in a CUDA graph since the last warning."""
        lost, self.told = self.numbers[1] - self.told, self.numbers[1]
        if lost:
            warnings.warn(
                f"{name or _name_of(self)}: in replays of a CUDA graph {lost} columns at risk found no slot (of "
                f"{HEADROOM} for each column that was at risk at its capture, at least {GRAIN}). They were recomputed "
                'as with memory_efficient=True, not "exact". Capture the graph again.',
                RuntimeWarning,
                stacklevel=2,
            )


_known: "weakref.WeakSet[Norm]" = weakref.WeakSet()
_lock = RLock()


def takes(output: Tensor, owners: Owners) -> bool:
    """Return whether the host would have to wait for a count, and the parameters tell of their changes."""
    given = [one for one in owners if one is not None]
    return output.is_cuda and all(one.is_contiguous() and not one.is_inference() for one in given)


def columns_at_risk(invvar: Tensor, output_dtype: torch.dtype, eps: float, owners: Owners) -> Tensor:
    """Return the numbers of the columns at risk, (count,), int32. Waits for the GPU if they have to be counted.

    owners: weight and bias as the caller has them, not as autocast rounds them; one may be None.

    Raises:
        RuntimeError: a CUDA graph is being captured, and nothing has been counted yet.
    """
    norm = _norm_of(owners, output_dtype, invvar.dtype, eps)
    if torch.cuda.is_current_stream_capturing():
        return _listed_in_graph(norm, owners)
    if norm.hidden and norm.measured != _Steps.count:
        norm.measured = _Steps.count
        norm.measure(invvar)
    changed = norm.version != sum([0 if one is None else one._version for one in owners])
    if norm.step != _Steps.count or changed or norm.graphs != norm.numbers[2]:
        again = norm.step >= 0 and in_a_backward()  # a checkpoint's second forward saves what its first has saved
        if not again:
            _count(norm.device)
    return norm.columns


def recount(model: torch.nn.Module) -> None:
    """Count the columns at risk of a model's norms anew in their next forward; warn of those that CUDA graphs lost.

    Call it after parameters were written to through `.data`, unless an optimizer's step follows. Waits for the GPU.
    """
    _Steps.count += 1
    for name, parameter in model.named_parameters():
        for norm in getattr(parameter.untyped_storage(), "normlab_exact", {}).values():
            torch.cuda.synchronize(norm.device)
            norm.warn(name)


def _norm_of(owners: Owners, output_dtype: torch.dtype, statistics: torch.dtype, eps: float) -> Norm:
    """Return what is known of these parameters, which hangs on the storage of the first."""
    weight, bias = owners
    first: Any = bias if weight is None else weight
    storage = first.untyped_storage()
    if not hasattr(storage, "normlab_exact"):
        storage.normlab_exact = {}
    other = None if bias is None else bias.storage_offset()
    key = first.storage_offset(), first.numel(), weight is None, other, output_dtype, eps
    norm = storage.normlab_exact.get(key)
    if norm is None or (bias is not None and norm.storages[-1]() is not bias.untyped_storage()):
        output_name, statistics_name = (str(dtype).removeprefix("torch.") for dtype in (output_dtype, statistics))
        norm = Norm(owners, output_name, statistics_name, eps)
        storage.normlab_exact[key] = norm
        with _lock:
            _known.add(norm)
    return norm


def _version_counter(parameter: Tensor) -> Tensor:
    """Return an empty tensor that shares the parameter's version counter, and no memory.

    Inside a custom operator `detach` gives a counter of its own, so it is called in a thread, which is outside.
    """
    with ThreadPoolExecutor(1) as outside:
        counter = outside.submit(parameter.detach).result()
    counter.data = torch.empty(0, dtype=counter.dtype, device=counter.device)
    return counter


def _count(device: torch.device) -> None:
    """List the columns at risk of all known norms of a GPU: one launch for each kind of norms, and one wait."""
    with _lock:
        step = _Steps.count
        kinds: dict[tuple, list[tuple[Norm, list[int]]]] = {}
        for norm in _known:
            addresses = norm.addresses() if norm.device == device else None
            if addresses is not None:
                kinds.setdefault(norm.kind, []).append((norm, addresses))
        before = {norm: (sum(one._version for one in norm.counters), norm.numbers[2]) for norm in _known}
        launched = []
        for norms in kinds.values():
            first = norms[0][0]
            if first.survey is None or first.survey.norms != norms:
                first.survey = _Survey(norms)
            launched.append((first.survey, first.survey()))
        torch.cuda.current_stream(device).synchronize()
        for survey, lists in launched:
            for (norm, _), columns, count in zip(survey.norms, lists, survey.counts.tolist(), strict=True):
                norm.columns = columns[:count]
                norm.version, norm.graphs, norm.step = *before[norm], step
                if norm.numbers[1] != norm.told:
                    norm.warn()


class _Survey:
    """A launch that lists the columns of norms of one kind, prepared for parameters at these addresses.

    counts: how many columns the norms have, in pinned memory.
    """

    def __init__(self, norms: list[tuple[Norm, list[int]]]):
        self.norms, first = norms, norms[0][0]
        self.home, self.sizes = TorchHome(first.device), [norm.n2 for norm, _ in norms]
        asked = [Asked(norm.n2, at[0], at[-1], norm.spread.data_ptr()) for norm, at in norms]
        table, memory, spreads = tabulate(asked, first.dtype, first.eps.dtype, self.home.index)
        self.counts = torch.empty(len(norms), dtype=torch.int64, device="cpu", pin_memory=first.device.type == "cuda")
        counts = DeviceArray(self.counts.data_ptr(), (len(norms),), table.dtype, self.home.index, self.counts)
        self.table = self.home.operand(torch.from_numpy(table).to(first.device), table.shape)  # kept for the launches
        weights, biases = (memory if has else None for has in first.kind[-2:])
        columns = self.home.empty((sum(self.sizes),), np.dtype(np.int32))
        self.launch = launch_survey(
            prepare, self.table, max(self.sizes), weights, biases, spreads, first.limits, columns, counts
        )
        self.launch.patches = ((self.launch.slots[-2], 0, 0),)  # each call has columns of its own

    def __call__(self) -> Sequence[Tensor]:
        """Queue the launch on torch's current stream; return what it writes: the columns of each norm, n2 slots."""
        columns = torch.empty(sum(self.sizes), dtype=torch.int32, device=self.home.device)
        self.launch(TorchHome(self.home.device).stream, [columns.data_ptr()])
        return columns.split(self.sizes)


def _listed_in_graph(norm: Norm, owners: Owners) -> Tensor:
    """Let a CUDA graph list the columns in each replay, in slots that its capture makes."""
    if norm.step < 0:
        raise RuntimeError(
            'memory_efficient="exact" has to count the columns at risk of new parameters, which a CUDA graph cannot '
            "wait for: run the norm once before the capture"
        )
    home, slots = TorchHome(norm.device), max(1, -(-HEADROOM * len(norm.columns) // GRAIN)) * GRAIN
    columns = torch.empty(slots, dtype=torch.int32, device=norm.device)
    weight, bias = (home.operand(one, (norm.n2,)) for one in owners)
    tally = DeviceArray(norm.tally.data_ptr(), (3,), np.dtype(np.int64), home.index, norm.tally)  # in pinned memory
    spread, listed = home.operand(norm.spread, (1,)), home.operand(columns, (slots,))
    launch_choice(home.launch, norm.n2, weight, bias, spread, norm.limits, listed, tally)
    return columns


def _name_of(norm: Norm) -> str:
    """Return the parameter's name in the largest model that has it: looked for among all objects, for a warning."""
    names = [
        name
        for module in gc.get_objects()
        if issubclass(type(module), torch.nn.Module)  # isinstance would ask a dead proxy for its class
        for name, parameter in module.named_parameters()
        if parameter.untyped_storage() is norm.storages[0]()
    ]
    return max(names, key=len, default=f"a norm of {norm.n2} columns")
