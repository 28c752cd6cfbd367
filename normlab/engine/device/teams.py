"""A barrier for one row group of a block. With `cuda.syncthreads`, every row group would wait for the slowest.

The Python twin is in `normlab.sim.machine.teams`. Source: PTX ISA, `barrier` (`barrier.sync a, b`).
"""

from llvmlite import ir
from numba.cuda.extending import intrinsic

from normlab.engine.compile.compiler import types
from normlab.engine.device.asynchronous import MEMORY
from normlab.sim import register_twin
from normlab.sim.machine import teams

WORD = ir.IntType(32)


@intrinsic
def team_sync(typing_context, number, threads):
    """Wait at the block's barrier `number` until `threads` threads, including this one, have arrived.

    After it, each of the threads sees what the others wrote to memory before it. `number` is an int from 1 to 15,
    because `cuda.syncthreads` uses barrier 0. `threads` is a multiple of 32, the same for all warps that arrive. Warps
    arrive whole, and a thread that has returned does not count. Row groups that may wait at the same time need
    different numbers.

    If `number` is not a constant, the kernel reserves all 16 barriers of its block. A multiprocessor of compute
    capability 9.0 then holds at most four blocks, a limit that `occupancy` does not count.
    """
    if not (isinstance(number, types.Integer) and isinstance(threads, types.Integer)):
        return None  # Numba then raises a TypingError that names the argument types

    def generate(context, builder, signature, args):
        operands = [
            context.cast(builder, value, kind, types.int32) for value, kind in zip(args, signature.args, strict=True)
        ]
        function = ir.FunctionType(ir.VoidType(), [WORD, WORD])
        barrier = ir.InlineAsm(function, "barrier.sync $0, $1;", f"r,r,{MEMORY}", side_effect=True)
        builder.call(barrier, operands, attrs=("convergent",))  # the compiler must not copy it into branches
        return context.get_dummy_value()

    return types.none(number, threads), generate


register_twin(team_sync, teams.team_sync, of_launch=True)
