"""What launches ask of memory, counted by `trace` in the simulator: what tests of traffic share."""

from collections.abc import Callable
from unittest.mock import patch

from normlab.engine import using
from normlab.sim import trace

LOADED = "l1tex__t_{}_pipe_lsu_mem_global_op_ld.sum"  # "requests", of a warp, or "sectors", of 32 bytes
STORED = "l1tex__t_{}_pipe_lsu_mem_global_op_st.sum"
COPIED = "sm__sass_l1tex_t_{}_pipe_lsu_mem_global_op_ldgsts.sum"  # by asynchronous copies


def counter() -> tuple[Callable[..., None], list[dict[str, float]]]:
    """A function for a step to launch kernels with, and the list that then has the counters of each launch."""
    found: list[dict[str, float]] = []

    def launch(kernel, grid, block, *operands, shared_bytes=0, cluster=1):
        found.append(trace(kernel, cluster=cluster)[grid, block, 0, shared_bytes](*operands).metrics)

    return launch, found


def counted(call: Callable[[], object]) -> list[dict[str, float]]:
    """The counters of each launch of a host function, which `call` calls."""
    launch, found = counter()
    with using("simulator"), patch("normlab.host.arrays.HostBackend.launch", staticmethod(launch)):
        call()
    return found
