"""The exact mode on a GPU: which columns to keep, counted once after each optimizer step.

One rule: the columns at risk depend on the parameters alone, which change at optimizer steps. So they are counted once
after each step, and the first forward that needs the count waits for it. That forward queues one launch for each kind
of norms, which lists the columns of all norms that were last used on its stream; other forwards compare a few integers.
A forward also counts where a parameter's version, storage or stream is another one. A write that PyTorch's version
counters do not show, and that no step follows, shows nowhere: call `recount`. What was counted hangs on the storage of
the weight (of the bias, without a weight).

While a CUDA graph is captured the host cannot wait. The graph then lists the columns in each replay, into HEADROOM
times as many slots as were at risk when they were last counted, and counts those that found none. The next eager
forward of the norm, or `recount`, warns of them. Replays may step an optimizer, which the host does not see: a norm
that was captured is counted in each of its eager forwards.

One input beside the parameters: the spread of x̂ (`normlab.kernels.exact.spread`), small where the rows of x vary by
less than sqrt(eps). Each norm measures it in its first forward after a step, for the next count.

Called by `normlab.nn.launched`.
"""

import gc
import warnings
import weakref
from collections.abc import Iterator
from contextlib import suppress
from threading import RLock, Thread
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from normlab.engine import DeviceArray, Launch, prepare
from normlab.host import checks
from normlab.host.arrays import FLOATS, TorchBackend
from normlab.kernels.exact.choose import launch_choice
from normlab.kernels.exact.risk import limits
from normlab.kernels.exact.spread import launch_spread
from normlab.kernels.exact.survey import Asked, launch_survey, tabulate
from normlab.nn.private import in_a_recomputation
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

    columns: (count,), int32. seen: step, stream and the parameters' identities and versions when they were counted;
    empty before.
    """

    def __init__(self, owners: Owners, output_dtype: str, statistics: str, eps: float):
        given = [one for one in owners if one is not None]
        self.storages = [weakref.ref(one.untyped_storage()) for one in given]
        self.offsets = [one.storage_offset() for one in given]
        self.counters = [_version_counter(one) for one in given]
        self.ids = [id(one) for one in given]
        self.n2, self.device = given[0].numel(), given[0].device
        self.dtype = FLOATS[str(given[0].dtype).removeprefix("torch.")]
        self.eps = checks.rounded_eps(eps, statistics)
        self.limits = limits(self.eps, output_dtype)
        self.kind = self.dtype, self.limits, *[one is not None for one in owners]  # one launch serves all of a kind
        # Without a bias, a small spread puts columns at risk only where outputs become subnormal.
        self.needs_spread = owners[1] is not None or output_dtype == "float16"
        self.spread = torch.ones(1, dtype=getattr(torch, statistics), device=self.device)
        self.tally = torch.zeros(3, dtype=torch.int64, device="cpu", pin_memory=self.device.type == "cuda")
        self.numbers = self.tally.numpy().data  # `choose_columns`'s counts in CUDA graphs, read without waiting
        self.columns = torch.empty(0, dtype=torch.int32, device=self.device)
        self.seen: tuple = ()
        self.at: list[int] = []  # the parameters' addresses when they were last counted
        self.alone = self.captured = False  # alone: its parameters may be there or not, so that only its forward counts
        self.place: tuple[_Survey, int] | None = None  # what counts it, and which of its norms this one is
        self.measured, self.told = -1, 0
        self.measuring: tuple[int, Launch] | None = None  # for so many rows
        self.stream = TorchBackend(self.device).stream

    def addresses(self) -> list[int]:
        """Return where the parameters lie; [] if their memory is gone, or given away for a while as FSDP does."""
        size, found = self.dtype.itemsize, []
        for reference, offset in zip(self.storages, self.offsets, strict=True):
            storage = reference()
            if storage is not None and storage.nbytes() >= (offset + self.n2) * size:
                found.append(storage.data_ptr() + offset * size)
        there = found if len(found) == len(self.storages) else []
        self.alone |= not there or there != (self.at or there)
        self.at = there
        return there

    def used(self, stream: int, given: list[Tensor]) -> None:
        """Remember the stream, and the parameters: others may lie in the same memory, with versions of their own."""
        ids = [id(one) for one in given]
        if (stream, ids) != (self.stream, self.ids):
            self.place, self.stream = None, stream
        if ids != self.ids:
            self.ids, self.counters = ids, [_version_counter(one) for one in given]

    def take(self, made: "Made", number: int) -> None:
        """Take the list that a survey has made for its norm of this number."""
        start = made.starts[number]
        self.columns = made.columns[start : start + made.counts[number]]
        self.seen = made.step, self.stream, *self.ids, *made.versions[number]

    def measure(self, invvar: Tensor) -> None:
        """Queue the launch that measures the spread; it is prepared once for each number of rows."""
        backend, rows, measuring = TorchBackend(self.device), invvar.numel(), self.measuring
        if measuring is None or measuring[0] != rows:
            launch = launch_spread(
                prepare, backend.operand(invvar, (rows,)), self.eps, backend.operand(self.spread, (1,))
            )
            launch.patches = ((launch.slots[0], 0, 0),)  # each call has an invvar of its own
            self.measuring = measuring = rows, launch
        measuring[1](backend.stream, [invvar.data_ptr()])

    def warn(self, name: str | None = None) -> None:
        """Warn of columns that found no slot in a CUDA graph since the last warning."""
        lost, self.told = self.numbers[1] - self.told, self.numbers[1]
        if lost:
            warnings.warn(
                f"{name or _name_of(self)}: in replays of a CUDA graph {lost} columns at risk found no slot (of "
                f"{HEADROOM} for each column that was at risk before its capture, at least {GRAIN}). They were "
                'recomputed as with memory_efficient=True, not "exact". Capture the graph again.',
                RuntimeWarning,
                stacklevel=2,
            )


_known: "weakref.WeakSet[Norm]" = weakref.WeakSet()
_captured: list[Norm] = []  # for good: a graph writes into their memory as long as it lives
_plans: dict[tuple, list["_Survey"]] = {}  # by device and stream: what counts the norms last used there, a kind each
_lock = RLock()  # of these; never held while the host waits


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
    if norm is None or torch.cuda.is_current_stream_capturing():
        return _listed_in_graph(norm, invvar, owners)
    stream = TorchBackend(norm.device).stream
    if norm.needs_spread and norm.measured != _Steps.count:
        norm.measure(invvar)
        norm.measured = _Steps.count
    given = [one for one in owners if one is not None]
    now = _Steps.count, stream, *[id(one) for one in given], *[one._version for one in given]
    if norm.captured or (now != norm.seen and not (norm.seen and in_a_recomputation())):
        norm.used(stream, given)
        if norm.place is not None and norm.place[0].made is not None:
            norm.take(norm.place[0].made, norm.place[1])  # perhaps another norm's forward has had it counted
        if norm.captured or now != norm.seen:
            norm.take(*_count(norm))
        if norm.numbers[1] != norm.told:
            norm.warn()
    return norm.columns


def recount(model: torch.nn.Module) -> None:
    """Count the columns at risk of a model's norms anew in their next forward; warn of those that CUDA graphs lost.

    Call it after writes that PyTorch's version counters do not show (through `.data`, by a collective or by a kernel of
    your own), unless an optimizer's step follows. Waits for the GPU.
    """
    _Steps.count += 1
    for name, storage in _storages(model):
        for norm in getattr(storage, "normlab_exact", {}).values():
            torch.cuda.synchronize(norm.device)
            norm.warn(name)


def _norm_of(owners: Owners, output_dtype: torch.dtype, statistics: torch.dtype, eps: float) -> Norm | None:
    """Return what is known of these parameters, which hangs on the storage of the first; None in a graph's capture."""
    weight, bias = owners
    first: Any = bias if weight is None else weight
    storage, other = first.untyped_storage(), None if bias is None else bias.untyped_storage()
    if not hasattr(storage, "normlab_exact"):
        storage.normlab_exact = {}
    offsets = [None if one is None else one.storage_offset() for one in owners]
    key = *offsets, id(other), first.numel(), first.dtype, output_dtype, eps
    norm = storage.normlab_exact.get(key)
    if norm is not None and (other is None or norm.storages[-1]() is other):
        return norm
    if torch.cuda.is_current_stream_capturing():
        return None
    output_name, statistics_name = (str(dtype).removeprefix("torch.") for dtype in (output_dtype, statistics))
    norm = Norm(owners, output_name, statistics_name, eps)
    with _lock:
        gone = [one for one, old in storage.normlab_exact.items() if None in [part() for part in old.storages]]
        for one in gone:  # whose bias is gone
            del storage.normlab_exact[one]
        storage.normlab_exact[key] = norm
        _known.add(norm)
        _plans.clear()
    return norm


def _version_counter(parameter: Tensor) -> Tensor:
    """Return an empty tensor that shares the parameter's version counter, and no memory.

    Inside a custom operator `detach` gives a counter of its own, so it is called in a thread, which is outside.
    """
    found: list[Tensor] = []
    outside = Thread(target=lambda: found.append(parameter.detach()))
    outside.start()
    outside.join()
    found[0].data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
    return found[0]


def _count(wanted: Norm) -> tuple["Made", int]:
    """List the columns at risk of all norms on this one's stream: one launch for each kind of norms, and one wait.

    The GPU has nothing to do from the end of the wait to the next launch: so each norm takes its own list later. Return
    the one made for this norm, and its number there.
    """
    with _lock:
        surveys = _plans.get((wanted.device, wanted.stream), [])
        if wanted.place is None or wanted.place[0] not in surveys or not all(survey.stands() for survey in surveys):
            surveys = _planned(wanted)
        made = {survey: survey() for survey in surveys}
        place: Any = wanted.place
    surveys[0].stream.synchronize()
    for survey, lists in made.items():
        survey.made = lists
    return made[place[0]], place[1]


def _planned(wanted: Norm) -> list["_Survey"]:
    """Return what counts a norm: together with all of its stream, or alone where its parameters come and go.

    So does its first count: in a model's first step the others have just been counted, or are not known yet.
    """
    wanted.addresses()
    if not wanted.seen or wanted.alone or wanted.captured:
        return [_Survey([wanted])]
    kinds: dict[tuple, list[Norm]] = {}
    for norm in _known:
        here = (norm.device, norm.stream) == (wanted.device, wanted.stream)
        if here and not norm.captured and not norm.alone and norm.addresses():
            kinds.setdefault(norm.kind, []).append(norm)
    surveys = [_Survey(norms) for norms in kinds.values()]
    _plans[wanted.device, wanted.stream] = surveys
    return surveys


class Made(NamedTuple):
    """What a launch of a survey has listed.

    step: that it came after. versions: of each norm's parameters. columns: of all norms, int32, where each norm's begin
    at `starts`. counts: how many each norm has.
    """

    step: int
    versions: list[list[int]]
    columns: Tensor
    starts: list[int]
    counts: memoryview


class _Survey:
    """A launch that lists the columns of norms of one kind, prepared for parameters at these addresses.

    made: by the latest launch that was waited for.
    """

    def __init__(self, norms: list[Norm]):
        self.norms, first = norms, norms[0]
        self.backend, self.stream = TorchBackend(first.device), torch.cuda.current_stream(first.device)
        asked = [Asked(norm.n2, norm.at[0], norm.at[-1], norm.spread.data_ptr()) for norm in norms]
        table, memory, spreads = tabulate(asked, first.dtype, first.eps.dtype, self.backend.index)
        self.table = self.backend.operand(
            torch.from_numpy(table).to(first.device), table.shape
        )  # kept for the launches
        self.slots, self.starts = int(table[:, 0].sum()), table[:, -1].tolist()
        self.memory = [(part, _address(part())) for norm in norms for part in norm.storages]
        weights, biases = (memory if has else None for has in first.kind[-2:])
        columns, counts = (self.backend.empty((1,), np.dtype(name)) for name in ("int32", "int64"))
        columns, counts = columns._replace(shape=(self.slots,)), counts._replace(shape=(len(norms),))
        self.launch = launch_survey(
            prepare, self.table, int(table[:, 0].max()), weights, biases, spreads, first.limits, columns, counts
        )
        self.launch.patches = tuple((slot, result, 0) for result, slot in enumerate(self.launch.slots[-2:]))
        self.made: Made | None = None
        for number, norm in enumerate(norms):
            norm.place = self, number

    def stands(self) -> bool:
        """Return whether all parameters lie where they lay when this was made."""
        return all(_address(part()) == address for part, address in self.memory)

    def __call__(self) -> Made:
        """Queue the launch; return what is read once the GPU has been waited for."""
        step, versions = _Steps.count, [[one._version for one in norm.counters] for norm in self.norms]
        device = self.backend.device
        columns = torch.empty(self.slots, dtype=torch.int32, device=device)
        counts = torch.empty(len(self.norms), dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda")
        self.launch(self.backend.stream, [columns.data_ptr(), counts.data_ptr()])
        return Made(step, versions, columns, self.starts, counts.numpy().data)


def _address(storage: Any) -> int:
    """Return where a storage lies; 0 if it is gone, or its memory is."""
    return 0 if storage is None else storage.data_ptr()


def _listed_in_graph(norm: Norm | None, invvar: Tensor, owners: Owners) -> Tensor:
    """Let a CUDA graph list the columns in each replay, in slots that its capture makes."""
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
        return columns  # so many that the input is saved
    weight, bias = (backend.operand(one, (norm.n2,)) for one in owners)
    tally = DeviceArray(norm.tally.data_ptr(), (3,), np.dtype(np.int64), backend.index, norm.tally)  # in pinned memory
    spread, listed = backend.operand(norm.spread, (1,)), backend.operand(columns, (slots,))
    launch_spread(backend.launch, backend.operand(invvar, (invvar.numel(),)), norm.eps, spread)
    launch_choice(backend.launch, norm.n2, weight, bias, spread, norm.limits, listed, tally)
    return columns


def _storages(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the names and storages of a module's parameters; none of modules and parameters that have none yet."""
    with suppress(AttributeError):  # a module whose __init__ has not run
        for name, parameter in module.named_parameters():
            with suppress(ValueError, RuntimeError, NotImplementedError):  # lazy or sparse
                yield name, parameter.untyped_storage()


def _name_of(norm: Norm) -> str:
    """Return the parameter's name in the largest model that has it: looked for among all objects, for a warning."""
    modules = [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module)]  # isinstance wakes proxies
    named = [name for one in modules for name, storage in _storages(one) if storage is norm.storages[0]()]
    return max(named, key=len, default=f"a norm of {norm.n2} columns")
