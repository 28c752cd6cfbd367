"""How many columns the exact mode keeps on a GPU, without waiting for the GPU to count them.

The forward needs to know how much memory to ask for, and only the GPU knows how many columns are at risk. For a
parameter's first forward the host waits for the number. From then on it makes room for as many columns as were at risk
or near it (with a gamma within a factor of 2) when the GPU last said so: forwards write that into pinned memory, which
the host reads without waiting. A column comes to risk through being near it, and a step changes parameters little, so
it has its room in time. Each forward that keeps something writes it. Where nothing is to be kept (`Steady`), a survey
behind each optimizer's step asks about all of its norms at once; forwards ask only if they are the first after a step
and no survey has been answered since, or part of a CUDA graph, and every eighth of the others. With other dtypes, or
another eps, other columns of the same parameter are at risk: these have a room of their own.

Parameters that were changed in another way (loaded, initialised, clamped or set by hand) are counted again, which waits
once more; so are those that are no optimizer's own tensors, such as views of one, or a bias that is computed anew for
each forward. Hooks before and behind every optimizer step tell the two apart by the parameters' version counters.
Some steps change parameters whose counters do not show it: what is gathered from shards (FSDP2's), what is copied in
through `.data` (from float32 master weights). Of those that the optimizer's step of shards may have changed, and of
those that columns without room have given away, the GPU's word is taken after each step of any optimizer.
While parameters stay the same, so does the room: a checkpointed forward, run again, must save what it saved before
(torch compares the shapes). So where no counter shows a change, the room stays from step to step, and through a
forward's second run, whose first may have been before the step.
Where more columns come to risk than there is room for all the same, because a step was large or nothing had yet told of
the change, those without room are recomputed as with memory_efficient=True until the next step, and a warning says so:
in the forward after one that has written. So a change that nothing shows, behind a step or between two and where
nothing was to be kept, may go unnoticed for eight forwards, and does in a CUDA graph that is replayed, whose room is
that of its capture. Norms of which columns were lost are not surveyed any more: their forwards ask after each step.

Threads and streams may share a parameter: they share its room. Of kernels that run at the same time, one may overwrite
what another has just added to the number that the warning tells.

Called by `normlab.nn.launched`.
"""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from threading import RLock
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from normlab.keeping import Kept, asking, keep_columns
from normlab.kernels.exact.choose import NEAR
from normlab.nn.shapes import Owners, Parameter
from normlab.nn.survey import Survey, question
from normlab.replay import Recording

GRAIN = 8  # columns: so that few capacities occur, each of which is prepared once
QUIET = 7  # forwards between two that ask, while no optimizer steps
Key: TypeAlias = tuple[int, int, int, tuple[int, ...]]
"""Where a parameter lies: compiled code gets it as another tensor."""
Kind: TypeAlias = tuple[torch.dtype | None, torch.dtype | None, torch.dtype, float]
"""What else the columns at risk depend on: the dtypes of weight, of bias and of the input, and eps."""


class Room:
    """What the GPU said last, about the columns of these parameters in norms of one kind, and for which versions."""

    def __init__(self, *owners: Tensor) -> None:
        """owners: weight, bias or both."""
        self._storages = [StorageWeakRef(owner.untyped_storage()) for owner in owners]
        # `storage.expired`, asked in each forward, without the Python around it:
        expired = [partial(torch.UntypedStorage._expired, storage.cdata) for storage in self._storages]
        first, last = expired[0], expired[-1]
        self.is_gone: Callable[[], Any] = first if len(expired) == 1 else lambda: first() or last()
        self.device = owners[0].device
        self.versions: dict[Key, int] = {}
        words = torch.zeros(3, dtype=torch.int64, device="cpu", pin_memory=self.device.type == "cuda")
        self.counts = words[:2]  # of `keep_columns`; the third is the latest survey that was answered
        self.capacity = 0
        self.hidden = False  # may a step change the parameters, and the versions do not show it?
        self.steps = 0  # of any optimizer
        self.shown = 0  # those that the versions have shown
        self.numbers = words.numpy().data  # the same memory: read in a twentieth of a tensor's time
        self._lost = 0
        self.told = 0, 0  # steps and shown when the capacity was found
        self.survey: Survey | None = None  # the latest that began with this room's question

    def counted(self, capacity: int, versions: dict[Key, int]) -> None:
        """Room for so many columns, which have been counted, of these versions."""
        self.capacity, self.versions, self.told = capacity, versions, (self.steps, self.shown)

    def offered(self) -> int:
        """Room for the columns at risk or near it; warns if some found none since it was last asked."""
        lost = self.numbers[1]
        if lost > self._lost:
            without_room, self._lost = lost - self._lost, lost
            self.hidden |= not self.shown
            warnings.warn(
                f"{without_room} columns came to risk sooner than room was made for their normalised values; "
                'they were recomputed as with memory_efficient=True, not "exact"',
                RuntimeWarning,
                stacklevel=2,
            )
        steps, shown = self.told
        if shown != self.shown or (self.hidden and steps != self.steps and not _second_run()):
            self.capacity = -(-(self.numbers[0] // NEAR) // GRAIN) * GRAIN
            self.told = self.steps, self.shown
        return self.capacity


class Steady:
    """A norm's parameters, none of whose columns was at risk or near it, and how the GPU is asked about them again.

    Where nothing is to be kept there is no more to do than that: a fifth of the time that `keep` takes on the host. And
    the GPU is asked only where it may have another answer: behind the parameters' optimizer's step, or else in the
    first forward after a step of any optimizer, in a graph that is captured, and for changes that nothing shows in each
    forward after QUIET others.
    """

    def __init__(
        self, room: Room, parameters: Owners, kind: tuple[torch.dtype, float], ask: Callable[[], None]
    ) -> None:
        """parameters: weight and bias. kind: what else the question depends on, of `Kind` all but their dtypes."""
        self.room, self.kind, self._ask = room, kind, ask
        # by where they lie, and as what: weak references, `torch.utils.swap_tensors` would refuse
        self._known = [None if one is None else _place(one) for one in parameters]
        self._count = len(self._known) - self._known.count(None)
        self.question = question(parameters, *kind, room.counts)
        self._call: tuple | None = None  # a recorded forward of these parameters, and where they lay
        # All that the answer depends on, when it was last found or as it is expected; and the room's `told` with that.
        self._last: tuple[tuple | None, tuple[int, int]] = None, room.told
        self._asked = -1  # after how many steps the GPU was asked
        self._quiet = 0  # how many more forwards need not ask

    def asked_again(
        self,
        x: Tensor,
        weight: Parameter,
        bias: Parameter,
        eps: float,
        recording: Recording | None,
        pointers: list[int],
    ) -> bool:
        """Is there nothing to keep, as the last times? The GPU counts again where it may find another number.

        If nothing has changed since the answer was last found under the lock, or a survey has found nothing behind the
        step that changed it, one comparison finds it without the lock. Threads that share a norm may then count their
        forwards a few too low before they ask.
        """
        room, numbers = self.room, self.room.numbers
        survey = numbers[2]  # before its answer, behind which the GPU writes it
        call = recording, pointers[1 : 1 + self._count]
        seen = None if weight is None else weight._version, None if bias is None else bias._version
        now = survey, numbers[0], numbers[1], call, seen, room.versions, room.capacity, room.steps
        last, told = self._last
        if now == last and self._quiet > 0 and not (room.is_gone() or torch.cuda.is_current_stream_capturing()):
            self._quiet -= 1
            room.told = told
            return True
        with _lock:
            if not self._are_these(x, weight, bias, eps, call, seen) or room.is_gone() or room.offered():
                return False
            if not torch.cuda.is_current_stream_capturing():  # what is captured is asked in each replay, not now
                self._last = None if recording is None or room.hidden else now, room.told
                if self._quiet > 0 and self._asked == room.steps:
                    self._quiet -= 1
                    return True
                self._quiet, self._asked = QUIET, room.steps
        self._ask()
        return True

    def may_be_surveyed(self, parameters: dict[Key, Tensor]) -> bool:
        """Is nothing kept or was ever lost, and are all of its parameters among these, and where the GPU reads them?"""
        if self.room.capacity or self.room.hidden or self.room.numbers[1]:
            return False
        found = [parameters.get(key) for key in self.room.versions]  # weight's first
        here = [None if one is None else one.data_ptr() for one in found]
        return here == [known[0] for known in self._known if known is not None]

    def expect(self, survey: int) -> None:
        """If all is well, this survey finds nothing, before the next forward has to ask, and nothing else is lost.

        It does not count as a forward that asks, which sees changes that come behind the step and that nothing shows.
        """
        room = self.room
        if self._call is not None and self._call[0] is not None:
            versions = iter(room.versions.values())
            seen = tuple([None if known is None else next(versions) for known in self._known])
            expected = survey, 0, 0, self._call, seen, room.versions, 0, room.steps
            self._last = expected, (room.steps, room.shown)

    def _are_these(self, x: Tensor, weight: Parameter, bias: Parameter, eps: float, call: tuple, seen: tuple) -> bool:
        """Are these the parameters, and unchanged? A recorded forward and their addresses tell all but versions."""
        versions = self.room.versions
        if call[0] is None or call != self._call:
            if (x.dtype, eps) != self.kind or len(versions) != self._count:  # those of other parameters with it
                return False
            for parameter, known in zip((weight, bias), self._known, strict=True):
                if known is None or parameter is None:
                    if known is not parameter:  # one of them is there: gone is not the same as never there
                        return False
                elif _place(parameter) != known:
                    return False
            self._call = call
        return [version for version in seen if version is not None] == [*versions.values()]  # weight's first


_rooms: dict[tuple[Key | None, Key | None, Kind], Room] = {}
_steady: dict[int, Steady] = {}  # by the id of the weight, or bias, which may be another one's by now
_lock = RLock()  # of the rooms and what they know; not held while columns are kept
_numbers = count(1)  # of surveys


def keep(owners: Owners, given: tuple) -> Kept:
    """`normlab.keeping.keep_columns` of given arguments, with the room that these parameters' columns need.

    Raises:
        RuntimeError: a CUDA graph is being captured, and the columns have to be counted.
    """
    if not given[0].numel():
        return keep_columns(*given, capacity=0)  # no rows have nothing to keep, and say nothing of others
    x, _, _, _, weight, bias, eps = given
    kind = None if weight is None else weight.dtype, None if bias is None else bias.dtype, x.dtype, eps
    own_weight, own_bias = (None if owner is None else _key(owner) for owner in owners)
    place = own_weight, own_bias, kind
    known = [owner for owner in owners if owner is not None]
    versions = {_key(owner): _version(owner) for owner in known}
    with _lock:
        room = _rooms.get(place)
        if room is None or versions != room.versions or room.is_gone():
            capacity = None
        else:
            capacity, counts = room.offered(), room.counts
    if capacity is not None:
        kept = keep_columns(*given, capacity=capacity, counts=counts)
        if capacity == 0 and room is not None:
            _note(room, given)
        return kept
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            'memory_efficient="exact" has to count the columns at risk of new or changed parameters, which a CUDA '
            "graph cannot wait for: run the norm once before the capture"
        )
    _forget()
    with _lock:
        room = _rooms.get(place) or _rooms.setdefault(place, Room(*known))
    kept = keep_columns(*given, counts=room.counts)
    with _lock:
        room.counted(kept.columns.shape[0], versions)
    return kept


def nothing_to_keep(
    x: Tensor, weight: Parameter, bias: Parameter, eps: float, recording: Recording | None, pointers: list[int]
) -> bool:
    """Is nothing to be kept, as the last times, and the GPU asked again if need be? If not, `keep` has it all to do.

    recording: the forward's, if it had one, which was called with these addresses, of x first.
    """
    steady = _steady.get(id(bias if weight is None else weight))
    return steady is not None and steady.asked_again(x, weight, bias, eps, recording, pointers)


def _note(room: Room, given: tuple) -> None:
    """Let `nothing_to_keep` know these parameters, if they are tensors whose changes show: parameters of their own."""
    x, mean, invvar, shape, weight, bias, eps = given
    parameters = [one for one in (weight, bias) if one is not None]
    if not all(isinstance(one, torch.nn.Parameter) and not one.is_inference() for one in parameters):
        return
    ask = asking(x, mean, invvar, shape, weight, bias, eps, room.counts)
    if ask is not None:
        with _lock:
            _steady[id(parameters[0])] = Steady(room, (weight, bias), (x.dtype, eps), ask)


def _second_run() -> bool:
    """Does a checkpoint run this forward again, in a backward? A reentrant one's first run has saved nothing."""
    hooked = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    return hooked and torch._C._current_graph_task_id() >= 0


def _forget() -> None:
    """Drop the rooms of parameters that are gone, once no kernel can write into their memory any more."""
    with _lock:
        gone = [_rooms.pop(place) for place, room in list(_rooms.items()) if room.is_gone()]
        for number in [number for number, steady in _steady.items() if steady.room in gone]:
            del _steady[number]
    for device in {room.device for room in gone if room.device.type == "cuda"}:
        torch.cuda.synchronize(device)


def _key(parameter: Tensor) -> Key:
    return parameter.untyped_storage()._cdata, int(parameter.storage_offset()), parameter.numel(), parameter.stride()


def _place(parameter: Tensor) -> tuple[int, int, torch.dtype, tuple[int, ...]]:
    """What a key tells but for storages that followed each other at one address; found in a third of its time."""
    return parameter.data_ptr(), parameter.numel(), parameter.dtype, parameter.stride()


def _version(parameter: Tensor) -> int:
    return 0 if parameter.is_inference() else parameter._version


_PLAIN = (Tensor, torch.nn.Parameter)


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _found(parameters: list[Tensor]) -> dict[Key, Tensor]:
    """Those of these tensors that there are rooms for."""
    storages = {key[0] for room in _rooms.values() for key in room.versions}
    return {
        _key(parameter): parameter
        for parameter in parameters
        if parameter.layout is torch.strided and parameter.untyped_storage()._cdata in storages
    }


def _before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Forget what was said of parameters that somebody else has changed."""
    if not _rooms:
        return
    plain = [parameter for parameter in _parameters(optimizer) if type(parameter) in _PLAIN]
    with _lock:
        found = _found(plain)
        for room in _rooms.values():
            if any(key in found and _version(found[key]) != version for key, version in room.versions.items()):
                room.versions = {}


def _after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Take what was said of parameters for near the truth, now that the optimizer has changed them; and ask again."""
    if not _rooms:
        return
    parameters = [*_parameters(optimizer)]
    plain = [parameter for parameter in parameters if type(parameter) in _PLAIN]
    with _lock:
        found = _found(plain)
        for room in _rooms.values():
            room.steps += 1
            mine = room.versions.keys() & found.keys()
            if not mine:
                room.hidden |= len(plain) < len(parameters)  # shards, of its own it may be
                continue
            versions = room.versions | {key: _version(found[key]) for key in mine}  # in the order that was
            if versions != room.versions:
                room.versions = versions
                room.shown += 1
        _survey(found)


def _survey(parameters: dict[Key, Tensor]) -> None:
    """Ask the GPU about all norms of these parameters, changed or not, whose latest forward had nothing to keep.

    But not where columns have ever been lost: it may be that they come to risk behind the step, by what nothing shows,
    where a forward would see it. Called under the lock: `_forget` then waits for what was asked.
    """
    asked = {one.room: one for one in _steady.values() if one.may_be_surveyed(parameters)}
    if not asked or torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing():
        return
    questions = [one.question for one in asked.values()]
    first = next(iter(asked))
    if first.survey is None or first.survey.questions != questions:
        first.survey = Survey(questions)
    number = next(_numbers)
    first.survey(number)
    for one in asked.values():
        one.expect(number)


register_optimizer_step_pre_hook(_before_step)
register_optimizer_step_post_hook(_after_step)
