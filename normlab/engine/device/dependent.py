"""Start a kernel before the previous kernel in its stream has ended (programmatic dependent launch, 9.0).

An ordinary launch starts a microsecond or two after the last block of the previous kernel: too long before a kernel
that itself takes three. `launch` starts a kernel that calls `grid_dependency_sync` early: as soon as every block of
the previous kernel has called `launch_dependents` or ended. The early blocks do the work that needs nothing from the
previous kernel, then wait in `grid_dependency_sync`. This is safe for the second and later kernels of an operation
whose first kernel was launched in the ordinary way, because all inputs were complete before the first kernel began.
On GPUs older than 9.0 both intrinsics do nothing. In the simulator a launch ends before the next one begins.

Source: PTX ISA, `griddepcontrol`; CUDA programming guide, "Programmatic dependent launch".
"""

from typing import Any

from llvmlite import ir
from numba.cuda.extending import intrinsic

from normlab.engine.compile.compiler import types
from normlab.engine.device.asynchronous import MEMORY
from normlab.engine.device.clusters import CLUSTER_CAPABILITY, ConfigStack
from normlab.sim import register_lanes, register_twin
from normlab.sim.vectorised import twins


@intrinsic
def launch_dependents(typing_context):
    """Let the next kernel in the stream begin if it calls `grid_dependency_sync` (cudaTriggerProgrammaticLaunch…)."""
    return _statement("griddepcontrol.launch_dependents;")


@intrinsic
def grid_dependency_sync(typing_context):
    """Wait until the previous kernels have ended and their stores are visible (cudaGridDependencySynchronize).

    Only after this call may a kernel read memory that the previous kernels write, or write memory that they use.
    """
    return _statement("griddepcontrol.wait;")


def begins_early(kernel: Any) -> bool:
    """Return True if the kernel calls `grid_dependency_sync`, so that it may be launched early."""
    return "grid_dependency_sync" in kernel.py_func.__code__.co_names


def _statement(text):
    def generate(context, builder, signature, args):
        if ConfigStack().top().compute_capability >= CLUSTER_CAPABILITY:
            builder.call(ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), text, MEMORY, side_effect=True), [])
        return context.get_dummy_value()

    return types.none(), generate


def _nothing() -> None:
    """Do nothing: the simulator's twin of both intrinsics."""


register_twin(launch_dependents, _nothing)
register_twin(grid_dependency_sync, _nothing)
register_lanes(_nothing, twins.nothing)
