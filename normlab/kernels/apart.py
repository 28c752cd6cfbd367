"""Do a part of a norm in kernels of its own, before or after the plain norm's kernels, with scratch between them.

The fast steps add a residual, an offset or a gate in the norm's own kernel. What they refuse (float64, rows that no
block holds, vectors that are too narrow) is planned here: a kernel beside the norm, and the norm by an earlier step.
"""

from dataclasses import replace
from typing import Any, NamedTuple

from normlab.engine import DeviceArray
from normlab.kernels.plan import PersistentPlan, Plan, Refusal, Scratch, View, Work

SCRATCH_ALIGNMENT = 256  # bytes: what every array backend gives
NO_ROW_MAP = Refusal("the plain norm's kernels take rows that follow each other in memory")


class Apart(NamedTuple):
    """What is done beside the plain norm: a kernel before or after it, its scratch, and an operand by another name.

    absent: operands that the plain norm does not have, although the problem does.
    """

    words: str
    names: tuple[str, str]
    before: tuple[Work, ...] = ()
    after: tuple[Work, ...] = ()
    scratch: tuple[Scratch, ...] = ()
    absent: tuple[str, ...] = ()


def described(scratch: Scratch) -> DeviceArray:
    """Return scratch as a planner sees an operand: shape, dtype and alignment, without memory."""
    return DeviceArray(SCRATCH_ALIGNMENT, scratch.shape, scratch.dtype, 0, None)


def together(apart: list[Apart], answer: Plan | PersistentPlan | None) -> Plan | PersistentPlan | Refusal:
    """Return a plain norm's answer with the kernels before and after it."""
    if answer is None:
        return Refusal("no step does the plain norm")
    if isinstance(answer, PersistentPlan):
        finish = answer.plan
        first = _renamed(answer.first, _names(apart))
        scratch = *(needed for one in apart for needed in one.scratch), *answer.scratch
        return PersistentPlan(first, scratch, answer.values, lambda resident: _joined(apart, finish(resident)))
    return _joined(apart, answer)


def _joined(apart: list[Apart], plan: Plan) -> Plan:
    """Return a plain norm's plan with the kernels before and after it."""
    names = _names(apart)
    before, after, scratch = (
        [one for part in apart for one in getattr(part, kind)] for kind in ("before", "after", "scratch")
    )
    return replace(
        plan,
        step=f"{plan.step} apart" if apart else plan.step,
        reads=plan.reads + bool(apart),
        work=(*before, *(_renamed(one, names) for one in plan.work), *after),
        scratch=(*scratch, *plan.scratch),
        why="; ".join([*(one.words for one in apart), plan.why]),
    )


def _names(apart: list[Apart]) -> dict[str, str | None]:
    """Return what the plain norm's operands are called."""
    absent = dict.fromkeys(name for one in apart for name in one.absent)
    return {**absent, **dict(one.names for one in apart)}


def _renamed(work: Work, names: dict[str, str | None]) -> Work:
    """Return a kernel that takes operands by other names; a name of None stands for an absent operand."""

    def rename(given: Any) -> Any:
        if isinstance(given, View):
            name = names.get(given.name, given.name)
            return None if name is None else given._replace(name=name)
        return names.get(given, given)

    return replace(work, arguments=tuple(map(rename, work.arguments)))
