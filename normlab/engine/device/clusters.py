"""Thread-block clusters: blocks that run at once and reach each other's shared memory (compute capability 9.0).

A launch with `cluster=8` groups eight neighbouring blocks along x into a cluster. The blocks of a cluster share a
barrier, and each of them can read and write the others' copies of a shared array. A launch without `cluster` has
clusters of one block. Each intrinsic has its Python twin in `normlab.sim.machine.clusters`.

Source: PTX ISA, `barrier.cluster`, `fence` (8.6, for `.sync_restrict`), `mapa`, `%cluster_ctarank`; CUDA programming
guide, "Distributed shared memory".
"""

from llvmlite import ir
from numba.cuda.extending import intrinsic

from normlab.engine.compile.compiler import TypingError, types
from normlab.engine.device.asynchronous import MEMORY, SHARED, address
from normlab.engine.device.intrinsics import convert, element_pointer
from normlab.sim import register_twin
from normlab.sim.machine import clusters

try:
    from numba.cuda.core.targetconfig import ConfigStack
except ImportError:
    from numba.core.targetconfig import ConfigStack

CLUSTER_CAPABILITY = 9, 0  # the lowest that has clusters, and programmatic dependent launch
WORD = ir.IntType(32)
ARRIVE = "barrier.cluster.arrive.release.aligned;"
ARRIVE_SHARED = "fence.release.sync_restrict::shared::cta.cluster; barrier.cluster.arrive.relaxed.aligned;"
WAIT = "barrier.cluster.wait.acquire.aligned;"


@intrinsic
def cluster_rank(typing_context):
    """Return this block's number in its cluster, an int32: `blockIdx.x` modulo the cluster's size."""

    def generate(context, builder, signature, args):
        _check_capability("cluster_rank")
        text = "mov.u32 $0, %cluster_ctarank;"
        return builder.call(ir.InlineAsm(ir.FunctionType(WORD, []), text, "=r"), [])

    return types.int32(), generate


@intrinsic
def cluster_sync(typing_context):
    """Wait for all threads of the cluster. After it, every thread sees what the others wrote to memory before it.

    A kernel needs one before its first access to another block's shared memory, because that block may not have
    started. It needs one after its last such access, because the other block may end. All lanes of a warp must call it
    together.
    """

    return _barrier("cluster_sync", f"{ARRIVE} {WAIT}")


@intrinsic
def cluster_arrive(typing_context):
    """Announce that this thread's memory accesses so far are done, and go on: the first half of `cluster_sync`."""
    return _barrier("cluster_arrive", ARRIVE)


@intrinsic
def cluster_arrive_shared(typing_context):
    """Arrive as `cluster_arrive` does, but release only what this thread wrote to its own block's shared memory.

    `cluster_arrive` first waits until the whole GPU sees all of the thread's stores, including rows of output that no
    other block reads. This intrinsic skips that wait. It therefore does not order the thread's stores to global memory
    or to another block's shared memory.
    """
    return _barrier("cluster_arrive_shared", ARRIVE_SHARED)


@intrinsic
def cluster_wait(typing_context):
    """Wait until all threads of the cluster have arrived: the second half of `cluster_sync`.

    After it, a thread sees what the other threads wrote before they arrived. Accesses between the two halves are not
    ordered. Every thread calls the two halves in turn.
    """
    return _barrier("cluster_wait", WAIT)


def _barrier(name, text):
    def generate(context, builder, signature, args):
        _check_capability(name)
        barrier = ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), text, MEMORY, side_effect=True)
        builder.call(barrier, [], attrs=("convergent",))  # the compiler must not copy it into the branches of an `if`
        return context.get_dummy_value()

    return types.none(), generate


@intrinsic
def store_to_block(typing_context, array, index, value, rank):
    """Store `array[index] = value` in the copy of `array` that block `rank` of the cluster has in shared memory.

    `array` is in shared memory and has ints or floats of 32 or 64 bits; `index` is an int or a tuple of ints, never
    negative. The other block may read the element after a `cluster_sync`.
    """
    bits = _checked_bits("store_to_block", array)

    def generate(context, builder, signature, args):
        _check_capability("store_to_block")
        remote = _remote_address(context, builder, signature, args, args[3], rank)
        element = convert(context, builder, args[2], value, array.dtype)
        element = builder.bitcast(element, ir.IntType(bits))
        function = ir.FunctionType(ir.VoidType(), [WORD, element.type])
        text, constraint = f"st.shared::cluster.b{bits} [$0], $1;", f"r,{_register(bits)},{MEMORY}"
        builder.call(ir.InlineAsm(function, text, constraint, side_effect=True), [remote, element])
        return context.get_dummy_value()

    return types.none(array, index, value, rank), generate


@intrinsic
def load_from_block(typing_context, array, index, rank):
    """Return `array[index]` from the shared memory of block `rank` of the cluster; limits as in `store_to_block`."""
    bits = _checked_bits("load_from_block", array)

    def generate(context, builder, signature, args):
        _check_capability("load_from_block")
        remote = _remote_address(context, builder, signature, args, args[2], rank)
        function = ir.FunctionType(ir.IntType(bits), [WORD])
        text, constraint = f"ld.shared::cluster.b{bits} $0, [$1];", f"={_register(bits)},r,{MEMORY}"
        loaded = builder.call(ir.InlineAsm(function, text, constraint, side_effect=True), [remote])
        return builder.bitcast(loaded, context.get_value_type(array.dtype))

    return array.dtype(array, index, rank), generate


def _remote_address(context, builder, signature, args, rank, rank_type):
    """Return the address of an element in another block's shared memory, in the cluster's address window."""
    here = address(builder, element_pointer(context, builder, signature, args), SHARED)
    number = context.cast(builder, rank, rank_type, types.int32)
    function = ir.FunctionType(WORD, [WORD, WORD])
    return builder.call(ir.InlineAsm(function, "mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r"), [here, number])


def _register(bits):
    return "r" if bits == 32 else "l"


def _checked_bits(name, array):
    """Return the bits of an element. Raise TypingError unless it is an int or a float of 32 or 64 bits."""
    if not isinstance(array.dtype, (types.Integer, types.Float)) or array.dtype.bitwidth not in (32, 64):
        raise TypingError(f"{name} moves ints and floats of 32 or 64 bits, but got an array of {array.dtype}")
    return array.dtype.bitwidth


def _check_capability(name):
    """Raise TypingError if the kernel is compiled for an older GPU.

    The check runs while code is generated, because Numba types a call only once for all compute capabilities.
    """
    target = ConfigStack().top().compute_capability  # of the compilation in progress
    if target < CLUSTER_CAPABILITY:
        major, minor = target
        raise TypingError(
            f"{name} needs compute capability 9.0 or later, but the kernel is compiled for {major}.{minor}"
        )


register_twin(cluster_rank, clusters.cluster_rank, of_launch=True)
register_twin(cluster_sync, clusters.cluster_sync, of_launch=True)
register_twin(cluster_arrive, clusters.cluster_arrive, of_launch=True)
register_twin(cluster_arrive_shared, clusters.cluster_arrive_shared, of_launch=True)
register_twin(cluster_wait, clusters.cluster_wait, of_launch=True)
register_twin(store_to_block, clusters.store_to_block, of_launch=True)
register_twin(load_from_block, clusters.load_from_block, of_launch=True)
