"""What the family's kernels ask of memory: every sector of x once, and nothing of it for nothing."""

import numpy as np
import pytest
from draws import DTYPES
from family.examples import channels_last

from normlab.host import family
from normlab.kernels import family as kernels
from normlab.sim import trace

SECTOR = 32  # bytes
LOADED = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
STORED = "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"
CONFLICTS = [f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{operation}.sum" for operation in ("ld", "st")]


def traced(launches):
    """What `launches(launch)` launches: (kernel's name, metrics) of each."""
    found = []

    def launch(kernel, grid, block, *operands):
        found.append((kernel.py_func.__name__, trace(kernel)[grid, block](*operands).metrics))

    launches(launch)
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("shape", "last"), [((2, 4, 16, 16), False), ((4, 64, 4, 4), True), ((64, 64), False)], ids=str
)
def test_moments_read_every_sector_of_x_once_and_outputs_write_it_once(shape, last, dtype):
    x = np.zeros(shape, DTYPES[dtype])
    x = channels_last(x) if last else x
    view = family.view_of(x)
    sets = view.sets("batch", shape[1])
    held = np.ascontiguousarray(view.as_stored(x)).reshape(sets.shape)
    output = np.empty_like(held)
    walked = kernels.walk(sets, held, output)
    pieces = np.empty((3, walked.pieces.size), np.float32)
    mean, invvar = np.zeros((2, sets.total), np.float32)
    ((_, moments),) = traced(lambda launch: walked.launch_moments(launch, held, pieces))
    assert moments[LOADED] == held.nbytes // SECTOR
    ((_, applied),) = traced(lambda launch: walked.launch_output(launch, held, mean, invvar, None, None, output))
    assert applied[STORED] == held.nbytes // SECTOR
    assert [moments[name] for name in CONFLICTS] == [0, 0]


def test_a_set_that_a_block_holds_is_read_once_by_one_kernel():
    x = np.zeros((2, 4, 16, 16), np.float32)
    sets = family.view_of(x).sets("instance", 4)
    held = x.reshape(sets.shape)
    output, (mean, invvar) = np.empty_like(held), np.zeros((2, sets.total), np.float32)
    walked = kernels.walk(sets, held, output)

    def launches(launch):
        kernels.forward(
            launch,
            None,
            walked,
            kernels.Outputs(walked.sets, held, None, None, np.float32(1), mean, None, invvar, output),
        )

    ((name, metrics),) = traced(launches)
    assert name == "family_rows"
    assert metrics[LOADED] == x.nbytes // SECTOR
    assert metrics[STORED] == x.nbytes // SECTOR + 2 * sets.total  # and both statistics
