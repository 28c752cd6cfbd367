"""Keep gamma and beta in shared memory: each block of the pipelined backward loads them once and reads them per row.

    widened    float32, so that no pass has to widen them; when recomputing, clamped gamma and 1 / gamma beside it
    narrow     the 16 bits of the parameter: each pass widens, clamps and inverts them

Both passes of a recomputing LayerNorm together read 8 bytes of y and dy per column from shared memory. Widened
parameters add 20 bytes and long rows wait for them; narrow ones add 8 bytes, and their instructions cost less than the
wait: 0.83 of a copy instead of 0.76 at n2 = 65536 in bfloat16 on an H200. Rows of one warp do not wait for shared
memory and lose a little: 0.93 instead of 0.94 at n2 = 768.
"""

from typing import Any

from normlab.kernels.backward.pipelined import parameters_narrow as narrow
from normlab.kernels.backward.pipelined import parameters_wide as wide
from normlab.kernels.backward.pipelined.kind import Kind
from normlab.kernels.backward.pipelined.layout import Layout


def keepers(layout: Layout, kind: Kind, dtype: Any) -> tuple[Any, Any]:
    """Return the two device functions with which the first row group loads the parameters for its block.

        fetch_parameters(operands, memory, share)               before the first rows' copies
        keep_parameters(operands, memory, share) -> rare        after these have been started

    rare: True if one of the thread's gammas was clamped, or needs a division instead of the fast reciprocal.
    """
    if kind.narrow:
        return narrow.fetcher(layout, kind), narrow.keeper(layout, kind, dtype)
    return wide.fetch_nothing, wide.keeper(layout, kind, dtype)


def readers(layout: Layout, kind: Kind) -> tuple[Any, Any, Any, Any]:
    """Return the device functions that load a thread's vector v of the parameters as float32.

    load_gammas(gammas, parameters, v, offset, weight)    not clamped if narrow; clamped if widened and recomputing
    load_clamped(gammas, parameters, v, offset, weight, eps)
    load_inverses(gammas, inverses, parameters, v, offset, weight, eps, rare)    clamped gammas and 1 / gamma
    load_betas(betas, parameters, v, offset, bias)
    """
    # both have the same signatures, so the passes do not ask which it is
    return (narrow.readers if kind.narrow else wide.readers)(layout, kind)
