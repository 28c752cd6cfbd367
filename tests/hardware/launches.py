"""What a launch to be counted is, and the words for what is counted."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

OPERATIONS = ("ld", "st")
REQUESTS = {op: f"l1tex__t_requests_pipe_lsu_mem_global_op_{op}.sum" for op in OPERATIONS}
SECTORS = {op: f"l1tex__t_sectors_pipe_lsu_mem_global_op_{op}.sum" for op in OPERATIONS}
SECTORS_A_REQUEST = {op: f"l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_{op}.ratio" for op in OPERATIONS}
WAVEFRONTS = {op: f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum" for op in OPERATIONS}
CONFLICTS = {op: f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum" for op in OPERATIONS}
COPY_REQUESTS = "sm__sass_l1tex_t_requests_pipe_lsu_mem_global_op_ldgsts.sum"  # of asynchronous copies (cp.async)
COPY_SECTORS = "sm__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts.sum"
COPY_WAVEFRONTS = "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum"
REMOTE_REQUESTS = {op: f"l1tex__t_requests_pipe_lsu_mem_dshared_op_{op}.sum" for op in OPERATIONS}  # in other blocks
REMOTE_SECTORS = {op: f"l1tex__t_sectors_pipe_lsu_mem_dshared_op_{op}.sum" for op in OPERATIONS}

WARP = 32  # lanes
SECTOR = 32  # bytes
BANKS_BYTES = 128  # that the 32 banks of shared memory give in one wavefront


@dataclass(frozen=True)
class Launch:
    """One launch of one kernel, to be counted by `ncu` and by `trace`.

    name: of the launch, unique. kernel: under `cuda.jit`. arguments: NumPy arrays, numbers and None from a random
    generator, fresh for each launch. expected: the arguments to the counts that a person finds with a pencil, metric
    name → count; only those that are easy. compiler: where the compiled kernel does something else than its source,
    what it does, and fewer: by how much it counts less than the source, metric name → count. unverified: no record has
    the launch yet; where it differs it is shown, and breaks no rule. shared_bytes, cluster: as of `engine.launch`.
    """

    name: str
    kernel: Any
    grid: int | tuple[int, ...]
    block: int | tuple[int, ...]
    arguments: Callable[[np.random.Generator], tuple]
    expected: Callable[[tuple], dict[str, int]] = lambda arguments: {}
    compiler: str = ""
    fewer: dict[str, int] = field(default_factory=dict)
    shared_bytes: int = 0
    cluster: int = 1
    unverified: bool = False

    @property
    def function(self) -> str:
        """The name of the kernel's function, which `ncu` shows a mangled form of."""
        return self.kernel.py_func.__name__


def counts(
    ld: tuple[int, int] | None = None,
    st: tuple[int, int] | None = None,
    shared_ld: int | None = None,
    shared_st: int | None = None,
) -> dict[str, int]:
    """Counts by metric name: (requests, sectors) of global loads and stores, wavefronts of shared ones."""
    found = {}
    for op, pair in (("ld", ld), ("st", st)):
        if pair is not None:
            found[REQUESTS[op]], found[SECTORS[op]] = pair
    for op, wavefronts in (("ld", shared_ld), ("st", shared_st)):
        if wavefronts is not None:
            found[WAVEFRONTS[op]] = wavefronts
    return {metric: int(count) for metric, count in found.items()}


def contiguous(elements: int, itemsize: int, width: int = 1) -> tuple[int, int]:
    """(requests, sectors) of `elements` neighbours, `width` of them a lane, from an aligned address on."""
    return -(-elements // (WARP * width)), -(-elements * itemsize // SECTOR)


def touched(indices: np.ndarray, itemsize: int) -> tuple[int, int]:
    """(requests, sectors) where lane k of warp w goes to element indices[w, k] of an aligned array."""
    return len(indices), sum(len(np.unique(row * itemsize // SECTOR)) for row in indices)
