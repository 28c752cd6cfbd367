"""Gamma and beta in shared memory: brought there once by a block of the pipelined backward, read with every row.

    widened    in float32, so that no pass has to widen them again; recomputing, gamma clamped and 1 / gamma beside it
    narrow     16 bits, as they are: widened, clamped and inverted where they are used

Both passes of a recomputing LayerNorm take 8 bytes of y and dy a column from shared memory, and widened 20 of the
parameters, for which long rows wait. Narrow these are 8, and the instructions that widen and invert cost less than the
wait (n2 = 65536, bfloat16: 0.83 of a copy for 0.76). Where nothing waits, as in rows of one warp, they cost what they
cost (768: 0.93 for 0.94).
"""

from typing import Any

from normlab.kernels.backward import parameters_narrow as narrow
from normlab.kernels.backward import parameters_wide as wide
from normlab.kernels.backward.kind import Kind
from normlab.kernels.backward.ring import Layout


def keepers(layout: Layout, kind: Kind, dtype: Any) -> tuple[Any, Any]:
    """The device functions that bring a thread's share of the parameters into shared memory; the first team's threads
    do it for all.

        fetch_parameters(parameters, weight, bias, team, place, first, n2)               before the first rows
        keep_parameters(parameters, weight, bias, eps, team, place, first, n2) -> rare   after these are on their way

    rare: has one of the thread's gammas been clamped, or must it be inverted with care?
    """
    if kind.narrow:
        return narrow.fetcher(layout, kind), narrow.keeper(layout, kind, dtype)
    return wide.fetch_nothing, wide.keeper(layout, kind, dtype)


def readers(layout: Layout, kind: Kind) -> tuple[Any, Any, Any, Any]:
    """The device functions that read a thread's vector v of the parameters, in float32.

    load_gammas(gammas, parameters, v, place, weight)    narrow, as they are; widened and recomputing, clamped
    load_clamped(gammas, parameters, v, place, weight, eps)
    load_inverses(gammas, inverses, parameters, v, place, weight, eps, rare)    clamped ones, and 1 over these
    load_betas(betas, parameters, v, place, bias)
    """
    return (narrow.readers if kind.narrow else wide.readers)(layout, kind)
