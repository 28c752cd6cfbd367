"""A barrier for all blocks of a launch: a kernel can pass over memory twice and keep its registers between the passes.

All blocks must be on the GPU at once, because the first blocks wait for the last. `launch` therefore launches a kernel
that calls `grid_sync` as a cooperative kernel: the driver refuses a grid that does not fit on the GPU, where an
ordinary launch would hang. The Python twin is in `normlab.sim.machine.grid`.

Source: PTX ISA, `red` and `ld` with `.release` and `.acquire`; CUDA programming guide, "Grid synchronization".
"""

from types import CellType
from typing import Any

from llvmlite import ir
from numba.cuda.extending import intrinsic

from normlab.engine.compile.compiler import TypingError, types
from normlab.engine.device.asynchronous import GLOBAL, MEMORY, address
from normlab.engine.device.intrinsics import element_pointer
from normlab.sim import register_twin
from normlab.sim.machine import grid

# The first `barrier.sync` orders the block's stores before its thread 0, whose `red.release` publishes them. Thread 0's
# `ld.acquire` sees the other blocks' stores, and the second `barrier.sync` makes them visible to the whole block.
MEETING = """{
.reg .pred there;
.reg .b32 blocks, number, seen;
barrier.sync 0;
mov.u32 number, %tid.x;
mov.u32 seen, %tid.y;
or.b32 number, number, seen;
mov.u32 seen, %tid.z;
or.b32 number, number, seen;
setp.ne.u32 there, number, 0;
@there bra MET;
mov.u32 blocks, %nctaid.x;
mov.u32 number, %nctaid.y;
mul.lo.u32 blocks, blocks, number;
mov.u32 number, %nctaid.z;
mul.lo.u32 blocks, blocks, number;
red.release.gpu.global.add.u32 [$0], 1;
WAITING:
ld.acquire.gpu.global.u32 seen, [$0];
setp.lt.u32 there, seen, blocks;
@there bra WAITING;
MET:
barrier.sync 0;
}"""


@intrinsic
def grid_sync(typing_context, arrivals, index):
    """Wait for all threads of the grid. After it, every thread sees what the others wrote to memory before it.

    `arrivals[index]`, an element of 32 bits in global memory, counts the blocks. It must be 0 before the launch, and
    nothing else may touch it. A second barrier in the same launch needs an element of its own. Every thread must call
    it: no thread may have returned.
    """
    if arrivals.dtype.bitwidth != 32:
        raise TypingError(f"grid_sync counts in an element of 32 bits, but got {arrivals}")

    def generate(context, builder, signature, args):
        place = address(builder, element_pointer(context, builder, signature, args), GLOBAL)
        meeting = ir.InlineAsm(ir.FunctionType(ir.VoidType(), [place.type]), MEETING, f"l,{MEMORY}", side_effect=True)
        builder.call(meeting, [place], attrs=("convergent",))  # the compiler must not copy it into branches
        return context.get_dummy_value()

    return types.none(arrivals, index), generate


def meets_all(kernel: Any) -> bool:
    """Return True if the kernel or a function it calls has a `grid_sync`: all its blocks must be on the GPU at once."""
    functions = [kernel.py_func]
    for function in functions:  # which grows by the functions that are called
        names, cells = function.__code__.co_names, (cell for cell in function.__closure__ or () if cell != CellType())
        called = [*map(function.__globals__.get, names), *(cell.cell_contents for cell in cells)]
        if "grid_sync" in names or any(one is grid_sync for one in called):
            return True
        more = (getattr(one, "py_func", None) for one in called)
        functions += [one for one in more if one is not None and one not in functions]
    return False


register_twin(grid_sync, grid.grid_sync, of_launch=True)
