"""What L2 is asked to give up last.

A kernel that reads every byte once gains nothing from a cache, one would think, so that hints to let go of the bytes
sooner look right. Measured on an H200 they cost 2 to 4 %, and the opposite gains 1 to 4 %: with its reads marked
`evict_last`, a norm moves memory faster than the driver's own copy. (`torch.compile` marks its reads so, too. Why it
helps is not documented; hints on the writes change nothing.) A kernel that reads the output next was not slower for it,
from 8 to 256 MB.

Asynchronous copies have no such hint here. It gains 1 to 3 % there, too, but where a thread may skip the copy, ptxas
(13.0 to 13.5) folds the address's base into the instruction, in a form that the GPU refuses as illegal.

Source: PTX ISA, "createpolicy" and "Cache eviction priority hints"; compute capability 8.0.
"""

from llvmlite import ir


def evict_last(builder):
    """The policy, as a 64-bit value for an instruction with `.L2::cache_hint`.

    It has a "side effect", for it must stay where it is used: a compiler that takes it out of a loop keeps it in two
    registers of every thread, and brings it back by two more instructions each time.
    """
    function = ir.FunctionType(ir.IntType(64), [])
    text = "createpolicy.fractional.L2::evict_last.b64 $0, 1.0;"
    return builder.call(ir.InlineAsm(function, text, "=l", side_effect=True), [])
