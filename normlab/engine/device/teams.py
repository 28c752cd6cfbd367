"""A barrier for one team of a block's threads, where `cuda.syncthreads` would let all teams wait for the slowest.

Its Python twin is in `normlab.sim.machine.teams`. Source: PTX ISA, `barrier` (`barrier.sync a, b`).
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
    """Wait at the barrier `number` of the block until `threads` threads, this one among them, have come to it.

    What they did to memory before is visible to all of them behind it. Both are ints, `number` from 1 to 15, as 0 is
    the barrier of `cuda.syncthreads`, and `threads` a multiple of 32. Whole warps come to it, all of them with the same
    `threads`; teams that may meet at the same time have numbers of their own. A thread that has returned does not
    count as arrived. A kernel whose number is known only when it runs takes all 16 barriers of its block, and with them
    no more than four blocks fit on a multiprocessor of compute capability 9.0, which `occupancy` does not count.
    """
    if not (isinstance(number, types.Integer) and isinstance(threads, types.Integer)):
        return None  # not for this intrinsic: Numba's error names the types that it was given

    def generate(context, builder, signature, args):
        operands = [
            context.cast(builder, value, kind, types.int32) for value, kind in zip(args, signature.args, strict=True)
        ]
        function = ir.FunctionType(ir.VoidType(), [WORD, WORD])
        barrier = ir.InlineAsm(function, "barrier.sync $0, $1;", f"r,r,{MEMORY}", side_effect=True)
        builder.call(barrier, operands, attrs=("convergent",))  # no copy of it in each branch of an `if`
        return context.get_dummy_value()

    return types.none(number, threads), generate


register_twin(team_sync, teams.team_sync, of_launch=True)
