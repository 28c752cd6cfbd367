"""Copies from global into shared memory that go on while the thread computes (`cp.async`, compute capability 8.0).

A thread starts copies, makes a group of those so far, and later waits until all groups but the latest few have
arrived: with two groups on their way, one stage of a buffer fills while the other is read. The elements take no
register on their way. Each intrinsic has its Python twin in `normlab.sim.machine.asynchronous`.

Source: PTX ISA, "Data movement and conversion instructions: non-bulk copy".
"""

from llvmlite import ir
from numba.cuda.extending import intrinsic

from normlab.engine.compile.compiler import TypingError, types
from normlab.engine.device.intrinsics import element_pointer
from normlab.sim import register_twin
from normlab.sim.machine import asynchronous

GLOBAL, SHARED = 1, 3  # the address spaces of NVVM
MEMORY = "~{memory}"  # the compiler keeps no value of memory in a register across, and moves no access over it


@intrinsic
def copy_async(typing_context, target, target_index, source, source_index, width):
    """Start to copy `width` elements' worth of bytes from `source[source_index]` on to `target[target_index]` on.

    `target` is in shared and `source` in global memory, both C-contiguous. Bits are copied as they are, so that the
    dtypes may differ: a pair of bfloat16 goes into a uint32. `width` is a literal int and counts elements of `target`;
    width times its itemsize is 4, 8 or 16 bytes, whole elements of `source`, to a multiple of which both addresses must
    be aligned; a multiple of 16 bytes is several instructions. The indices are ints or tuples of ints, never negative.

    The elements are there after `wait_copies`, for the thread that called it; for other threads after a barrier that
    follows. Sixteen bytes go by L2 alone, fewer through L1.
    """
    if not isinstance(width, types.IntegerLiteral):
        return None  # not for this intrinsic: Numba's error names the types that it was given
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
    """Make one group of the copies that the thread has started since the last group; it may be empty."""
    return _statement("cp.async.commit_group;")


@intrinsic
def wait_copies(typing_context, pending):
    """Wait until at most `pending`, a literal int, of the thread's latest groups are still on their way.

    What has arrived is visible to this thread: put a barrier behind if others read it. Copies that no
    `commit_copies` has put into a group are not waited for.
    """
    if not isinstance(pending, types.IntegerLiteral):
        return None
    if pending.literal_value < 0:
        raise TypingError(f"wait_copies leaves 0 groups or more on their way, not {pending.literal_value}")
    return _statement(f"cp.async.wait_group {pending.literal_value};", pending)


def _statement(text, *arguments):
    """An intrinsic without a result that is one instruction, across which no access to memory moves."""

    def generate(context, builder, signature, args):
        function = ir.FunctionType(ir.VoidType(), [])
        builder.call(ir.InlineAsm(function, text, MEMORY, side_effect=True), [])
        return context.get_dummy_value()

    return types.none(*arguments), generate


def address(builder, pointer, space):
    """A generic pointer, as Numba's arrays carry it, as an address in one space: 32 bits for shared memory, else 64."""
    there = builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee, addrspace=space))
    return builder.ptrtoint(there, ir.IntType(32 if space == SHARED else 64))


register_twin(copy_async, asynchronous.copy_async, of_launch=True)
register_twin(commit_copies, asynchronous.commit_copies, of_launch=True)
register_twin(wait_copies, asynchronous.wait_copies, of_launch=True)
