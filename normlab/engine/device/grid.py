"""A barrier for all blocks of a launch: a kernel that uses it goes over memory twice, and keeps what its blocks know.

All blocks have to be on the GPU at once, for the first ones wait for the last. So a kernel that calls `grid_sync` is
launched as a cooperative one (`launch` sees that it does): the driver then refuses a grid that the GPU does not hold,
instead of letting it hang. Its Python twin is in `normlab.sim.machine.grid`.

Source: PTX ISA, `red` and `ld` with `.release` and `.acquire`; CUDA programming guide, "Grid synchronization".
"""

from typing import Any

from llvmlite import ir
from numba.cuda.extending import intrinsic

from normlab.engine.compile.compiler import TypingError, types
from normlab.engine.device.asynchronous import GLOBAL, MEMORY, address
from normlab.engine.device.intrinsics import element_pointer
from normlab.sim import register_twin
from normlab.sim.machine import grid

# The block's barrier before hands what its threads have done to its first thread, which hands it on; the one behind
# brings what the others have done to all of them.
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
    """Wait for all threads of the grid; what they did to memory before is visible to all of them behind it.

    `arrivals[index]`, an element of 32 bits in global memory, counts the blocks: it is 0 before the launch, and nothing
    else touches it. A second meeting has an element of its own. All threads come to it, none of them has returned.
    """
    if arrivals.dtype.bitwidth != 32:
        raise TypingError(f"grid_sync counts in an element of 32 bits, but got {arrivals}")

    def generate(context, builder, signature, args):
        place = address(builder, element_pointer(context, builder, signature, args), GLOBAL)
        meeting = ir.InlineAsm(ir.FunctionType(ir.VoidType(), [place.type]), MEETING, f"l,{MEMORY}", side_effect=True)
        builder.call(meeting, [place], attrs=("convergent",))  # one place for all: no copy of it in each branch
        return context.get_dummy_value()

    return types.none(arrivals, index), generate


def meets_all(kernel: Any) -> bool:
    """Do the blocks of the kernel wait for each other?"""
    return "grid_sync" in kernel.py_func.__code__.co_names


register_twin(grid_sync, grid.grid_sync, of_launch=True)
