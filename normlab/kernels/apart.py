"""Do a part of a norm in kernels of its own, before or after the plain norm's kernels, with scratch between them.

The fast steps add a residual, an offset or a gate in the norm's own kernel. What they refuse (float64, rows that no
block holds, vectors that are too narrow) is planned here: a kernel beside the norm, and the norm by an earlier step.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from normlab.engine import DeviceArray, accumulator, cast, cuda, load_vector_into, store_vector_from
from normlab.kernels.plan import GRID_LIMIT, PersistentPlan, Plan, Refusal, Scratch, View, Work
from normlab.stages.vector import widest

THREADS = 256  # per block, and a block per row
SCRATCH_ALIGNMENT = 256  # bytes: what every array backend gives
EXTRA = " and extra kernels"  # after the name of the plain norm's step
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


@cache
def build(dtype: Any, width: int, combiner: Callable[..., Any], *options: Any) -> Any:
    """Return the kernel `combine_rows` for an accumulator dtype and vectors of `width` elements.

    combiner(dtype, *options): the device function `combined(value, other, like)`. like: an array of dtype.
    """
    combined = combiner(dtype, *options)

    @cuda.jit
    def combine_rows(first, second, result):
        """Write combined(first, second), rounded once. All are (n1, n2); second may be None, which counts as 0."""
        values = cuda.local.array(width, dtype)
        others = cuda.local.array(width, dtype)
        for k in range(width):
            # An absent second operand counts as 0 in each element.
            others[k] = cast(0, others)
        row = cuda.blockIdx.x
        while row < result.shape[0]:
            column = cuda.threadIdx.x * width
            while column < result.shape[1]:
                load_vector_into(values, 0, first, (row, column), width)
                if second is not None:
                    load_vector_into(others, 0, second, (row, column), width)
                for k in range(width):
                    values[k] = combined(values[k], others[k], values)
                store_vector_from(result, (row, column), values, 0, width)
                column += THREADS * width
            row += cuda.gridDim.x

    return combine_rows


def combining(
    shape: tuple[int, ...], like: Any, names: tuple, arrays: tuple, combiner: Callable[..., Any], *options: Any
) -> Work:
    """Return the kernel that combines two matrices into a third, by their names.

    like: an array of the accumulator's dtype. arrays: what limits the width of vectors. combiner, options: of `build`.
    """
    n1, n2 = shape
    how = accumulator(like), widest(n2, *arrays), combiner, *options
    return Work(build, how, min(n1, GRID_LIMIT), THREADS, names)


def described(scratch: Scratch) -> DeviceArray:
    """Return scratch as a planner sees an operand: shape, dtype and alignment, without memory."""
    return DeviceArray(SCRATCH_ALIGNMENT, scratch.shape, scratch.dtype, 0, None)


def together(apart: list[Apart], answer: Plan | PersistentPlan | None) -> Plan | PersistentPlan | Refusal:
    """Return a plain norm's answer with the kernels before and after it."""
    if answer is None:
        return Refusal("no step does the plain norm")
    if isinstance(answer, PersistentPlan):
        # How many blocks fit is not known yet, so the kernels are joined inside of `plan`. The driver is asked about
        # the first of the plain norm's kernels, which must already name its operands as the joined plan does.
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
        step=plan.step + EXTRA if apart else plan.step,
        # The kernels beside the norm read the matrices once more.
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
        # A view of an operand stays a view of what stands in its place.
        if isinstance(given, View):
            name = names.get(given.name, given.name)
            return None if name is None else given._replace(name=name)
        return names.get(given, given)

    return replace(work, arguments=tuple(map(rename, work.arguments)))
