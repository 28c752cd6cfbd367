"""Convert numbers of all lanes at once, as the device's casts do (IntegerCast in language/integers.py)."""

from typing import Any

import ml_dtypes
import numpy as np

from normlab.sim.language.integers import WITH_LOADS_OF_THEIR_OWN, IntegerCast
from normlab.sim.vectorised.arithmetic import in_dtype, lane_by_lane
from normlab.sim.vectorised.refusal import NotVectorisedError
from normlab.sim.vectorised.values import BOOLEANS, HOLDERS, SIGNED, Vector


def float_to_integer(data: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return floats truncated toward zero as cvt.rzi does: out of range saturates in a register of 32 or 64 bits."""
    # PTX has no conversion of a float to 8 or 16 bits: it goes by way of a register of 32.
    register = max(dtype.itemsize * 8, 32)
    signed = dtype.kind == "i"
    low = -(1 << register - 1) if signed else 0
    high = low + (1 << register) - 1
    wide = data.astype(np.float64)
    whole = np.trunc(wide)
    # 2.0**63 - 1 is no float64: compare with the power of two above, and put the largest integer in by hand.
    over, under, nan = whole >= float(high + 1), whole < low, np.isnan(wide)
    held = np.dtype(np.int64) if signed else np.dtype(np.uint64)
    # What does not fit is replaced first, because it depends on the CPU what `astype` makes of it.
    result = np.where(over | under | nan, 0.0, whole).astype(held)
    result[over], result[under] = high, low
    # NaN is the register's highest bit, or 0 from a narrower float into 32 bits (PTX ISA, cvt).
    if register == 64 or data.dtype == np.float64:
        nothing = 1 << register - 1
        result[nan] = nothing - (1 << register) if signed else nothing
    # A type narrower than the register takes its low bits.
    return result.astype(dtype)


def to_integer(cast: IntegerCast, value: Any, width: int) -> Any:
    """Return `cast(value)` for all lanes."""
    if type(value) is not Vector:
        raise NotVectorisedError(f"of a cast of a {type(value).__name__}")
    data = value.data
    if data.dtype.kind in "iub":
        data = data.astype(cast.dtype)  # keeps the low bits, as a cast of C does
    elif data.dtype in (np.float16, np.float32, np.float64):
        data = float_to_integer(data, cast.dtype)
    else:
        return lane_by_lane(cast, (value,), width)
    # A narrow integer is held in 64 bits again, as after a load; its kind remembers the width.
    kind = WITH_LOADS_OF_THEIR_OWN.get(cast.dtype, cast.dtype.type)
    return Vector(kind, data.astype(HOLDERS[kind], copy=False))


def to_scalar_type(kind: type, value: Any, width: int) -> Any:
    """Return `kind(value)` for all lanes, for a NumPy type: a float, a bool, or np.int64."""
    if type(value) is not Vector or kind not in HOLDERS:
        raise NotVectorisedError(f"of a cast to {kind.__name__}")
    if value.kind is kind:
        return value
    if kind in BOOLEANS:
        return Vector(kind, value.data != 0)
    if kind in (np.float32, np.float64) and value.kind is ml_dtypes.bfloat16:
        # Exact: every bfloat16 is a float32.
        return Vector(kind, value.data.astype(kind))
    if HOLDERS[kind].kind == "f" and value.data.dtype.kind in "iubf":
        data = in_dtype(value, HOLDERS[kind])
        return lane_by_lane(kind, (value,), width) if data is None else Vector(kind, data)
    if kind is np.int64 and (value.kind in SIGNED or value.kind in BOOLEANS):
        return Vector(kind, value.data.astype(np.int64, copy=False))
    return lane_by_lane(kind, (value,), width)
