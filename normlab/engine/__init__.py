"""Compile and launch kernels. Only the engine chooses between the GPU and the simulator.

Kernels import `cuda` and the intrinsics (`load`, `store`, `cast`, …) from here, and the host code imports `launch`.
The same kernel then runs in three ways: compiled on a GPU, interpreted by `normlab.sim`, or compiled to PTX without a
GPU.
"""

from numba import cuda, float32, float64, int32, uint16, uint32, uint64

from normlab.engine.compile.lengths import same_lengths
from normlab.engine.compile.offline import compile_ptx
from normlab.engine.compile.resources import (
    MULTIPROCESSORS,
    Occupancy,
    Resources,
    block_shared_bytes,
    occupancy,
    resources,
)
from normlab.engine.compile.signatures import accumulator
from normlab.engine.device.asynchronous import commit_copies, copy_async, wait_copies
from normlab.engine.device.clusters import (
    cluster_arrive,
    cluster_arrive_shared,
    cluster_rank,
    cluster_sync,
    cluster_wait,
    load_from_block,
    store_to_block,
)
from normlab.engine.device.dependent import grid_dependency_sync, launch_dependents
from normlab.engine.device.grid import grid_sync
from normlab.engine.device.intrinsics import cast, flat, load, rounded, store
from normlab.engine.device.reciprocals import reciprocal, reciprocal_of_normal
from normlab.engine.device.shifts import cut_into, load_words_if, shift_of, widen_into
from normlab.engine.device.teams import team_sync
from normlab.engine.device.vectors import (
    copy_bits,
    load_bits,
    load_bits_into,
    load_vector,
    load_vector_evict_last,
    load_vector_into,
    store_bits_from,
    store_vector,
    store_vector_from,
)
from normlab.engine.launching.arrays import (
    DeviceArray,
    compute_capability,
    device_empty,
    device_of,
    device_zeros,
    multiprocessors,
    numba_array,
    synchronize,
    to_device,
    to_host,
)
from normlab.engine.launching.launch import Launch, launch, prepare, resident_clusters
from normlab.engine.launching.worlds import gpu_available, use_gpu, using

__all__ = [
    "MULTIPROCESSORS",
    "DeviceArray",
    "Launch",
    "Occupancy",
    "Resources",
    "accumulator",
    "block_shared_bytes",
    "cast",
    "cluster_arrive",
    "cluster_arrive_shared",
    "cluster_rank",
    "cluster_sync",
    "cluster_wait",
    "commit_copies",
    "compile_ptx",
    "compute_capability",
    "copy_async",
    "copy_bits",
    "cuda",
    "cut_into",
    "device_empty",
    "device_of",
    "device_zeros",
    "flat",
    "float32",
    "float64",
    "gpu_available",
    "grid_dependency_sync",
    "grid_sync",
    "int32",
    "launch",
    "launch_dependents",
    "load",
    "load_bits",
    "load_bits_into",
    "load_from_block",
    "load_vector",
    "load_vector_evict_last",
    "load_vector_into",
    "load_words_if",
    "multiprocessors",
    "numba_array",
    "occupancy",
    "prepare",
    "reciprocal",
    "reciprocal_of_normal",
    "resident_clusters",
    "resources",
    "rounded",
    "same_lengths",
    "shift_of",
    "store",
    "store_bits_from",
    "store_to_block",
    "store_vector",
    "store_vector_from",
    "synchronize",
    "team_sync",
    "to_device",
    "to_host",
    "uint16",
    "uint32",
    "uint64",
    "use_gpu",
    "using",
    "wait_copies",
    "widen_into",
]
