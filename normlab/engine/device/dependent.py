"""Kernels that begin before the one ahead of them in the stream has ended (programmatic dependent launch, 9.0).

A launch takes a microsecond or two after the last block of the kernel before it has ended: too long for a kernel that
itself takes three. A kernel that calls `grid_dependency_sync` is launched ahead of time (`launch` sees that it does):
as soon as all blocks of the kernel before have called `launch_dependents`, or ended, its blocks come in where there is
room, do what needs nothing of that kernel, and wait. So may the second and later kernels of an operation, whose first
one was launched the ordinary way: before that began, all inputs were there. Older GPUs do neither. In the simulator a
launch ends before the next one begins.

Source: PTX ISA, `griddepcontrol`; CUDA programming guide, "Programmatic dependent launch".
"""

from typing import Any

from llvmlite import ir
from numba.cuda.extending import intrinsic

from normlab.engine.compile.compiler import types
from normlab.engine.device.asynchronous import MEMORY
from normlab.engine.device.clusters import NEEDED, ConfigStack
from normlab.sim import register_twin


@intrinsic
def launch_dependents(typing_context):
    """Let the next kernel in the stream begin, if it waits for this one by itself (cudaTriggerProgrammaticLaunch…)."""
    return _statement("griddepcontrol.launch_dependents;")


@intrinsic
def grid_dependency_sync(typing_context):
    """Wait until the kernels before have ended and all their stores are visible (cudaGridDependencySynchronize).

    All that they write, or that others may read while they run, is touched behind it alone.
    """
    return _statement("griddepcontrol.wait;")


def begins_early(kernel: Any) -> bool:
    """Does the kernel wait by itself for those before it?"""
    return "grid_dependency_sync" in kernel.py_func.__code__.co_names


def _statement(text):
    def generate(context, builder, signature, args):
        if ConfigStack().top().compute_capability >= NEEDED:
            builder.call(ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), text, MEMORY, side_effect=True), [])
        return context.get_dummy_value()

    return types.none(), generate


def _nothing() -> None:
    """The twin of both."""


register_twin(launch_dependents, _nothing)
register_twin(grid_dependency_sync, _nothing)
