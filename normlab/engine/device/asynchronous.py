"""Copy from global into shared memory while the thread computes (`cp.async`, compute capability 8.0).

A thread starts copies, commits them as a group, and later waits until all except the latest few groups have arrived.
With two groups pending, one stage of a buffer fills while the thread reads the other stage. The copied elements pass
through no register. Each intrinsic has its Python twin in `normlab.sim.machine.asynchronous`.

Source: PTX ISA, "Data movement and conversion instructions: non-bulk copy".
"""

from llvmlite import ir
from numba.cuda.extending import intrinsic

from normlab.engine.compile.compiler import TypingError, types
from normlab.engine.device.intrinsics import element_pointer
from normlab.sim import register_twin
from normlab.sim.machine import asynchronous

GLOBAL, SHARED = 1, 3  # the address spaces of NVVM
MEMORY = "~{memory}"  # the compiler moves no memory access across, and keeps no loaded value in a register across


@intrinsic
def copy_async(typing_context, target, target_index, source, source_index, width):
    """Start to copy `width` elements into `target`, from `target_index` on; the bytes come from `source[source_index]`.

    `target` is in shared and `source` in global memory, both C-contiguous. Bits are copied unchanged, so the dtypes
    may differ: a pair of bfloat16 can go into a uint32. `width` is a literal int and counts elements of `target`. The
    copy has 4, 8 or 16 bytes, or a multiple of 16 bytes (then it takes several instructions), and covers whole
    elements of `source`. Both addresses must be aligned to the instruction's bytes. The indices are ints or tuples of
    ints, never negative.

    The calling thread may read the elements after `wait_copies`; other threads need a barrier after that. A copy of
    16 bytes bypasses L1; a smaller one goes through L1.
    """
    if not isinstance(width, types.IntegerLiteral):
        return None  # Numba then raises a TypingError that names the argument types
    count, dtype = width.literal_value, target.dtype
    size = count * dtype.bitwidth // 8
    if (size not in (4, 8) and (size % 16 or size < 16)) or size * 8 % source.dtype.bitwidth:
        raise TypingError(
            f"copy_async moves 4, 8 or 16 bytes at a time and whole elements, but {count} x {dtype} are {size} bytes, "
            f"to come from elements of {source.dtype}"
        )
    if not target.layout == source.layout == "C":
        raise TypingError(f"copy_async needs C-contiguous arrays, but got {target} and {source}")
    once = min(size, 16)
    kind = "cg" if once == 16 else "ca"

    def generate(context, builder, signature, args):
        addresses = [
            address(builder, element_pointer(context, builder, context_signature, values), space)
            for context_signature, values, space in (
                (types.none(target, target_index), args[:2], SHARED),
                (types.none(source, source_index), args[2:4], GLOBAL),
            )
        ]
        function = ir.FunctionType(ir.VoidType(), [one.type for one in addresses])
        for first in range(0, size, once):
            text = f"cp.async.{kind}.shared.global [$0 + {first}], [$1 + {first}], {once};"
            builder.call(ir.InlineAsm(function, text, f"r,l,{MEMORY}", side_effect=True), addresses)
        return context.get_dummy_value()

    return types.none(target, target_index, source, source_index, width), generate


@intrinsic
def commit_copies(typing_context):
    """Commit the copies that the thread has started since its last group as a new group, which may be empty."""
    return _statement("cp.async.commit_group;")


@intrinsic
def wait_copies(typing_context, pending):
    """Wait until at most `pending`, a literal int, of the thread's latest groups are still pending.

    The arrived elements are visible to the calling thread. Put a barrier after this call if other threads read them.
    Copies that `commit_copies` has not put into a group are not waited for.
    """
    if not isinstance(pending, types.IntegerLiteral):
        return None
    if pending.literal_value < 0:
        raise TypingError(f"wait_copies leaves 0 groups or more on their way, not {pending.literal_value}")
    return _statement(f"cp.async.wait_group {pending.literal_value};", pending)


def _statement(text, *arguments):
    """Return the type and generator of an intrinsic that is one instruction and a barrier to the compiler."""

    def generate(context, builder, signature, args):
        function = ir.FunctionType(ir.VoidType(), [])
        builder.call(ir.InlineAsm(function, text, MEMORY, side_effect=True), [])
        return context.get_dummy_value()

    return types.none(*arguments), generate


def address(builder, pointer, space):
    """Return the address, in one address space, of a generic pointer: 32 bits for shared memory, else 64 bits."""
    there = builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee, addrspace=space))
    return builder.ptrtoint(there, ir.IntType(32 if space == SHARED else 64))


register_twin(copy_async, asynchronous.copy_async, of_launch=True)
register_twin(commit_copies, asynchronous.commit_copies, of_launch=True)
register_twin(wait_copies, asynchronous.wait_copies, of_launch=True)
