"""Compute 1 / value with the GPU's fast approximation. The simulator's Python twins round correctly instead."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.cuda.extending import intrinsic

from normlab.engine.compile.compiler import types
from normlab.sim import register_lanes, register_twin
from normlab.sim.vectorised import twins


def _reciprocal(name: str, instruction: str, summary: str) -> Any:
    """Return an intrinsic `name(value)` that applies one PTX instruction to a float32."""

    def typed(typing_context, value):
        if value != types.float32:
            return None

        def generate(context, builder, signature, args):
            function = ir.FunctionType(ir.FloatType(), [ir.FloatType()])
            return builder.call(ir.InlineAsm(function, f"{instruction} $0, $1;", "=f,f"), args)

        return types.float32(value), generate

    typed.__name__ = typed.__qualname__ = name
    typed.__doc__ = summary
    return intrinsic(typed)


reciprocal = _reciprocal(
    "reciprocal",
    "rcp.approx.f32",
    """Return 1 / value of a float32, off by at most one unit in the last place. Source: PTX ISA, `rcp.approx.f32`.""",
)
reciprocal_of_normal = _reciprocal(
    "reciprocal_of_normal",
    "rcp.approx.ftz.f32",
    """Return 1 / value in a single instruction that takes subnormal values as 0 and flushes subnormal results to 0.""",
)


SMALLEST_NORMAL = np.finfo(np.float32).smallest_normal


def _inverse(value: Any) -> Any:
    return np.float32(1) / value


def _flushed(value: Any) -> Any:
    return np.where((abs(value) >= SMALLEST_NORMAL) | np.isnan(value), value, np.copysign(np.float32(0), value))[()]


def _inverse_of_normal(value: Any) -> Any:
    return _flushed(_inverse(_flushed(value)))


register_twin(reciprocal, _inverse)
register_twin(reciprocal_of_normal, _inverse_of_normal)
register_lanes(_inverse, twins.of_whole_arrays(_inverse))
register_lanes(_inverse_of_normal, twins.of_whole_arrays(_inverse_of_normal))
