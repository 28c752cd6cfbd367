"""The exact mode on a GPU: list the columns at risk once after each optimizer step.

The columns at risk depend on the parameters, and the parameters change at optimizer steps. So the columns are counted
once after each step, and the first forward that needs the count waits for it. This file is that rule; the launches
stand in `normlab.nn.counting`. The forward that waits queues one launch for each kind of norms; those of one kind have
the same dtypes, eps and parameters. The launch lists the columns of all norms that were last used on the forward's
stream. Every other forward compares a few integers, and counts again only if a parameter's version or storage, or the
stream, has changed. If a write does not change PyTorch's version counter, and no optimizer step follows, the caller has
to call `recount`. The counts are an attribute of the weight's storage, or of the bias's if there is no weight.

While a CUDA graph is captured the host cannot wait. The graph then lists the columns in each replay, into
`counting.HEADROOM` times as many slots as there were columns at risk when they were last counted. It also counts the
columns that found no slot, and the norm's next eager forward, or `recount`, warns of them. A replay may contain an
optimizer step, which the host does not see. So a norm that was captured is counted in each of its eager forwards.

The count has one input beside the parameters: the spread of x̂ (`normlab.kernels.exact.spread`), which is small where
the rows of x vary by less than sqrt(eps). Each norm measures it in its first forward after a step, for the next count.

Called by `normlab.nn.launched`.
"""

import weakref
from threading import RLock
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from normlab.host.arrays import TorchBackend
from normlab.nn import checks
from normlab.nn.counting import ColumnLists, Norm, Survey, listed_in_graph, storages
from normlab.nn.formulas import present
from normlab.nn.private import in_a_recomputation, version_of
from normlab.nn.shapes import Owners


class Steps:
    """How many steps all optimizers have made; each `recount` counts as one."""

    count = 0

    @classmethod
    def add(cls, *_: Any) -> None:
        """Count one more."""
        cls.count += 1


register_optimizer_step_post_hook(Steps.add)


_known: "weakref.WeakSet[Norm]" = weakref.WeakSet()
_surveys: dict[tuple, list[Survey]] = {}  # by device and stream: one for each kind of norms last used there
_lock = RLock()  # guards the two above; never held while the host waits


def can_count(output: Tensor, owners: Owners) -> bool:
    """Return True if this module can count the columns of a norm.

    The output must be a CUDA tensor, and the parameters contiguous and with version counters, which tensors made in
    inference mode lack.
    """
    given = present(owners)
    return output.is_cuda and all(one.is_contiguous() and not one.is_inference() for one in given)


def columns_at_risk(invvar: Tensor, output_dtype: torch.dtype, eps: float, owners: Owners) -> Tensor:
    """Return the numbers of the columns at risk, (count,), int32. Waits for the GPU if they have to be counted.

    owners: the weight and bias that the caller gave, before autocast rounds them; one may be None.

    Raises:
        RuntimeError: a CUDA graph is being captured, and nothing has been counted yet.
    """
    norm = _norm_of(owners, output_dtype, invvar.dtype, eps)
    if norm is None or torch.cuda.is_current_stream_capturing():
        return listed_in_graph(norm, invvar, owners)
    stream = TorchBackend(norm.device).stream
    if norm.needs_spread and norm.measured != Steps.count:  # once after each step, for the next count
        norm.measure(invvar)
        norm.measured = Steps.count
    given = present(owners)
    now = Steps.count, stream, *[id(one) for one in given], *map(version_of, given)
    # A checkpoint's second forward takes the first one's columns, so that both save the same tensors.
    changed = now != norm.seen and not (norm.seen and in_a_recomputation())
    if norm.captured or changed:
        norm.note_use(stream, given)
        if norm.survey is not None and norm.survey.lists is not None:
            norm.take(norm.survey.lists, norm.number)  # another norm's forward may have counted this one
        if norm.captured or now != norm.seen:
            norm.take(*_count(norm))
        if norm.lost() != norm.warned:
            norm.warn()
    return norm.columns


def recount(model: torch.nn.Module) -> None:
    """Let the next forward of a model's norms count the columns at risk again, and warn of columns CUDA graphs lost.

    Call it after a write that PyTorch's version counters do not show, unless an optimizer's step follows. Such a write
    goes through `.data`, or is made by a collective or by a kernel of your own. Waits for the GPU.
    """
    checks.check_module("recount", model)
    Steps.add()
    for name, storage in storages(model):
        for norm in getattr(storage, "normlab_exact", {}).values():
            torch.cuda.synchronize(norm.device)
            norm.warn(name)


def _norm_of(owners: Owners, output_dtype: torch.dtype, statistics: torch.dtype, eps: float) -> Norm | None:
    """Return the `Norm` of these parameters, an attribute of the first one's storage, or make it.

    Return None if there is none while a CUDA graph is captured.
    """
    weight, bias = owners
    first: Any = bias if weight is None else weight
    storage, other = first.untyped_storage(), None if bias is None else bias.untyped_storage()
    if not hasattr(storage, "normlab_exact"):
        storage.normlab_exact = {}
    offsets = [None if one is None else one.storage_offset() for one in owners]
    key = *offsets, id(other), first.numel(), first.dtype, output_dtype, eps
    norm = storage.normlab_exact.get(key)
    # The id of a freed storage may be given to another one, so the bias's storage itself is compared, too.
    if norm is not None and (other is None or norm.storages[-1]() is other):
        return norm
    if torch.cuda.is_current_stream_capturing():
        return None
    output_name, statistics_name = (str(dtype).removeprefix("torch.") for dtype in (output_dtype, statistics))
    norm = Norm(owners, output_name, statistics_name, eps)
    with _lock:
        freed = [one for one, old in storage.normlab_exact.items() if None in [part() for part in old.storages]]
        for one in freed:  # norms whose bias has been freed
            del storage.normlab_exact[one]
        storage.normlab_exact[key] = norm
        _known.add(norm)
        _surveys.clear()  # the next count plans them again, with this norm
    return norm


def _count(wanted: Norm) -> tuple[ColumnLists, int]:
    """List the columns at risk of all norms on the wanted norm's stream: one launch for each kind of norms, one wait.

    Return the lists that hold the wanted norm's, and the norm's number in them. The other norms take their lists in
    their own forwards, because the GPU is idle from the end of the wait to the next launch.
    """
    with _lock:
        surveys = _surveys.get((wanted.device, wanted.stream), [])
        if wanted.survey not in surveys or not all(survey.is_current() for survey in surveys):
            surveys = _planned(wanted)
        queued = {survey: survey(Steps.count) for survey in surveys}
        own: Any = wanted.survey
        number = wanted.number  # noted here: another thread may plan again during the wait
    surveys[0].stream.synchronize()
    for survey, lists in queued.items():
        survey.lists = lists
    return queued[own], number


def _planned(wanted: Norm) -> list[Survey]:
    """Return the surveys that count a norm: together with all norms of its stream, or alone.

    A norm is counted alone if its parameters' memory moves or is freed between uses, as FSDP does. Its first count is
    alone, too: in a model's first step the other norms either have just been counted or are not known yet.
    """
    wanted.addresses()  # sets `wanted.alone` if the parameters' memory has moved or is freed
    if not wanted.seen or wanted.alone or wanted.captured:
        return [Survey([wanted])]
    kinds: dict[tuple, list[Norm]] = {}
    for norm in _known:
        here = (norm.device, norm.stream) == (wanted.device, wanted.stream)
        if here and not norm.captured and not norm.alone and norm.addresses():
            kinds.setdefault(norm.kind, []).append(norm)
    surveys = [Survey(norms) for norms in kinds.values()]
    _surveys[wanted.device, wanted.stream] = surveys
    return surveys
