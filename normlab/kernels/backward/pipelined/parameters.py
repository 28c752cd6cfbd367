"""Keep gamma and beta in shared memory: each block of the pipelined backward loads them once and reads them per row.

    wide      float32, so that no pass has to widen them. To recompute x̂: the clamped gamma, 1 / gamma, and beta
    narrow    the parameter's own 16 bits: each pass widens them, and to recompute x̂ clamps and inverts gamma

`keepers` says what each of the two costs.
"""

from typing import Any

from normlab.kernels.backward.pipelined import parameters_narrow as narrow
from normlab.kernels.backward.pipelined import parameters_wide as wide
from normlab.kernels.backward.pipelined.kind import Kind
from normlab.kernels.backward.pipelined.layout import PipelineLayout


def keepers(layout: PipelineLayout, kind: Kind, dtype: Any) -> tuple[Any, Any]:
    """Return the two device functions with which the first row group loads the parameters for its block.

        fetch_parameters(operands, memory, share)               call it before the first rows' copies are started
        keep_parameters(operands, memory, share) -> rare        call it after that; it is a barrier of the block

    rare: True if one of this thread's gammas is clamped or, with narrow parameters, needs a division instead of the
    fast reciprocal.
    """
    # Together both passes of a LayerNorm that recomputes x̂ read 8 bytes of y and dy per column from shared memory.
    # Wide parameters add 20 bytes, and long rows wait for them. Narrow parameters add 8 bytes. Their additional
    # instructions cost less than the wait: 0.83 of a copy instead of 0.76 at n2 = 65536 in bfloat16 on an H200. Rows of
    # one warp do not wait for shared memory and lose a little: 0.93 instead of 0.94 at n2 = 768. Tried: few rows, whose
    # blocks take one each, load parameters where they are used. LayerNorm of 700 x 2,048 took 11.8 us instead of 10.1,
    # because both passes then wait for L2.
    if kind.narrow:
        return narrow.fetcher(layout, kind), narrow.keeper(layout, kind, dtype)
    return wide.fetch_nothing, wide.keeper(layout, kind, dtype)


def readers(layout: PipelineLayout, kind: Kind) -> tuple[Any, Any, Any, Any]:
    """Return the device functions that load a thread's vector v of the parameters as float32.

        load_gammas(gammas, parameters, v, offset, weight)
        load_clamped(gammas, parameters, v, offset, weight, eps)                     clamped gammas
        load_inverses(gammas, inverses, parameters, v, offset, weight, eps, rare)    clamped gammas and 1 / gamma
        load_betas(betas, parameters, v, offset, bias)

    `load_gammas` gives gamma as it is, except from wide parameters of a kernel that recomputes x̂: these are clamped.
    parameters, offset: `Memory.parameters`, `Share.offset`. weight, bias: the arrays, for their dtype.
    """
    # wide and narrow functions have the same signatures, so the passes do not ask which they have
    return (narrow.readers if kind.narrow else wide.readers)(layout, kind)
