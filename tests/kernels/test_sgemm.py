"""The SGEMM ladder in the simulator: right at every edge, free of races, and each step does what it is for."""

from dataclasses import replace
from functools import cache, partial

import devices
import hypothesis
import numpy as np
import pytest
from counting import COPIED, counter
from hypothesis import strategies as st
from products import examine, operands, run, watched

from normlab.engine import using
from normlab.kernels import LADDERS
from normlab.kernels.sgemm import step_11_pipelined, tiling
from normlab.kernels.sgemm.product import ProductProblem
from normlab.stages.lanes import blocks_in_bands, blocks_in_rows, lanes_in_rows

# Of the pipelined step's kernel, with little to simulate: 32 x 64 by four warps.
SMALL_PLAN = step_11_pipelined.Tiles(
    runs_down=1, runs_across=1, warps_down=2, warps_across=2, depth=8, stages=3, blocks=1
)
every_step = pytest.mark.parametrize("step", LADDERS["sgemm"], ids=lambda step: step.name)
STEPS = {step.name: step for step in LADDERS["sgemm"]}


def depth_of(step):
    """How many k's a step takes at a time."""
    return step.plan(ProductProblem(64, 64, 64), devices.of((9, 0))).layout.tile[2]


def test_every_step_has_a_name_of_its_own_and_one_line_of_summary():
    assert len(STEPS) == len(LADDERS["sgemm"])
    for step in LADDERS["sgemm"]:
        assert step.summary
        assert "\n" not in step.summary
        assert 0 < step.simulated_seconds(1, 1, 1) < step.simulated_seconds(1000, 1000, 1000)


@every_step
@pytest.mark.parametrize(
    ("m", "n", "k", "alpha", "beta", "schedule"),
    [
        (129, 33, 9, 1.5, 0.25, "forward"),  # a row more than a tile, a k more; nothing is aligned
        (7, 132, 12, 1.0, 0.0, "reverse"),  # vectors of four, that end within a tile
    ],
)
def test_a_step_is_right_at_the_edges(step, m, n, k, alpha, beta, schedule):
    with using("simulator", schedule):
        examine(step, operands(m, n, k, alpha, beta))


sizes = st.sampled_from([1, 2, 7, 31, 33, 64, 129])  # of which no two are more than a tile: that takes four blocks


@every_step
@hypothesis.settings(max_examples=3)
@hypothesis.given(
    st.tuples(sizes, sizes).filter(lambda both: min(both) <= 128),
    st.sampled_from(["one", "less", "a tile", "one more", "three tiles"]),
    st.sampled_from([1.0, 0.3]),
    st.booleans(),
)
def test_a_step_is_right_for_small_matrices(step, sides, turns, alpha, added):
    """k around what a step takes at a time; a third tile, where they are short, comes to the first one's place."""
    m, n = sides
    deep = depth_of(step)
    depths = {
        "one": 1,
        "less": max(deep - 1, 2),
        "a tile": deep,
        "one more": deep + 1,
        "three tiles": min(2 * deep, 32),
    }
    k = depths[turns] + (turns == "three tiles")
    with using("simulator"):
        examine(step, operands(m, n, k, alpha, 2.5 if added else 0.0, seed=m + n))


@pytest.mark.parametrize(
    ("plan", "k"),
    [(SMALL_PLAN, 70), (step_11_pipelined.PLAN, 17)],  # 70: the ring goes round twice while tiles are whole
)
def test_the_pipelined_step_is_right_with_a_plan(plan, k, monkeypatch):
    monkeypatch.setattr(step_11_pipelined, "PLAN", plan)
    with using("simulator", 3):
        examine(STEPS["pipelined"], operands(33, 68, k, 2.0))


@pytest.mark.parametrize(
    "name", [name for name in STEPS if name not in ("vectors", "padded", "warp_tile", "block_order")]
)
def test_nothing_is_found_in_a_step(name, monkeypatch):
    """Two tiles along K: the second one comes where the first one was.

    Those left out have the barriers of `z_order`, or of `double_buffer`: it is the same kernel, with other places.
    """
    monkeypatch.setattr(step_11_pipelined, "PLAN", SMALL_PLAN)
    step = STEPS[name]
    depth = SMALL_PLAN.stages * SMALL_PLAN.depth if name == "pipelined" else depth_of(step)
    given = operands(5, 12, depth + 1, 1.0, 0.5)

    assert np.isfinite(run(step, given, watched)).all()


def test_nothing_is_found_in_the_pipelined_step_where_its_tiles_are_whole(monkeypatch):
    monkeypatch.setattr(step_11_pipelined, "PLAN", SMALL_PLAN)

    turns_of_both_loops = 3 + SMALL_PLAN.stages - 1
    assert np.isfinite(run(STEPS["pipelined"], operands(32, 64, 8 * turns_of_both_loops), watched)).all()


@pytest.mark.parametrize("name", ["naive", "vectors"])  # which have the two stages that scale and store
def test_c_is_not_read_where_it_is_not_given_and_is_where_it_is(name):
    step, given = STEPS[name], operands(3, 5, 2, 1.0, 0.5)
    with_nan = given._replace(c=np.full_like(given.c, np.nan))
    with using("simulator"):
        assert np.isnan(run(step, with_nan)).all()
        assert np.isfinite(run(step, given._replace(c=None, beta=0.0))).all()


# What each step is for, as counters of one block's work on (128, 8) times (8, 128).

LD, ST = "mem_global_op_ld", "mem_global_op_st"
SHARED_LD, SHARED_ST = "mem_shared_op_ld", "mem_shared_op_st"
REQUESTS = "l1tex__t_requests_pipe_lsu_{}.sum"
SECTORS = "l1tex__t_sectors_pipe_lsu_{}.sum"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_{}.sum"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_{}.sum"


def counters(step, m, n, k):
    launch, found = counter()
    run(step, operands(m, n, k), launch)
    (metrics,) = found
    return metrics


@cache
def of_one_tile(name):
    return counters(STEPS[name], 128, 128, 8)


@cache
def of_one_square(name):
    return counters(STEPS[name], 32, 32, 32)


def test_coalescing_takes_a_warp_from_33_sectors_for_two_loads_to_5():
    naive, coalesced = of_one_square("naive"), of_one_square("coalesced")
    requests = 2 * 32 * 32  # two loads a k, of 32 warps
    assert naive[REQUESTS.format(LD)] == coalesced[REQUESTS.format(LD)] == requests
    assert naive[SECTORS.format(LD)] == requests // 2 * 33  # 32 rows of A, and one element of B for all
    assert coalesced[SECTORS.format(LD)] == requests // 2 * 5  # one element of A for all, and 128 bytes of B
    assert (naive[SECTORS.format(ST)], coalesced[SECTORS.format(ST)]) == (32 * 32, 32 * 4)


def test_the_shared_tile_takes_the_loads_from_global_memory():
    coalesced, shared = of_one_square("coalesced"), of_one_square("shared_tile")
    assert shared[REQUESTS.format(LD)] * 32 == coalesced[REQUESTS.format(LD)]
    assert shared[WAVEFRONTS.format(SHARED_LD)] == 2 * 32 * 32  # one for each load that was a request


def test_a_thread_tile_takes_a_quarter_of_the_bytes_a_result():
    shared, tiled = of_one_square("shared_tile"), of_one_tile("inner_product")
    loaded = "normlab__bytes_moved_mem_global_op_ld.sum"
    for_each = shared[loaded] / 32**3, tiled[loaded] / (128**2 * 8)  # a product of two elements
    assert for_each == (2 * 4 / 32, 2 * 4 / 128)


def test_the_outer_product_reads_shared_memory_an_eighth_as_often():
    inner, outer = of_one_tile("inner_product"), of_one_tile("outer_product")
    assert inner[WAVEFRONTS.format(SHARED_LD)] == 8 * outer[WAVEFRONTS.format(SHARED_LD)]


def test_vectors_quarter_the_requests():
    outer, vectors = of_one_tile("outer_product"), of_one_tile("vectors")
    for operation in (LD, ST):
        assert outer[REQUESTS.format(operation)] == 4 * vectors[REQUESTS.format(operation)]
    assert outer[SECTORS.format(LD)] == vectors[SECTORS.format(LD)]


def test_padding_takes_the_bank_conflicts_from_the_transposed_store():
    vectors, padded = of_one_tile("vectors"), of_one_tile("padded")
    # A's four stores of eight warps meet in pairs; B's one store of 16 bytes a lane takes four wavefronts and no more
    assert vectors[CONFLICTS.format(SHARED_ST)] == 4 * 8
    assert padded[CONFLICTS.format(SHARED_ST)] == 0
    assert vectors[WAVEFRONTS.format(SHARED_ST)] - padded[WAVEFRONTS.format(SHARED_ST)] == 4 * 8


def test_the_warp_tile_and_its_order_take_fewer_wavefronts_a_load():
    a_k_of_a_warp = 8 * 8  # of eight warps
    found = [of_one_tile(name)[WAVEFRONTS.format(SHARED_LD)] for name in ("padded", "warp_tile", "z_order")]
    assert found == [20 * a_k_of_a_warp, 12 * a_k_of_a_warp, 8 * a_k_of_a_warp]
    assert of_one_tile("padded")[CONFLICTS.format(SHARED_LD)] > 0
    assert of_one_tile("warp_tile")[CONFLICTS.format(SHARED_LD)] == 0


def test_lanes_8_x_4_take_as_many_wavefronts_as_4_x_8():
    turned = tiling.of_warps(8, 4, lanes_in_rows(8))
    other = replace(STEPS["warp_tile"], ways=(partial(tiling.plan, "warp_tile", turned),))
    examine(other, operands(9, 17, 9))
    wavefronts = WAVEFRONTS.format(SHARED_LD)
    assert counters(other, 128, 128, 8)[wavefronts] == of_one_tile("warp_tile")[wavefronts]


def test_two_buffers_halve_the_barriers_of_a_tile():
    one, two = (counters(STEPS[name], 1, 1, 16)["normlab__barriers.sum"] for name in ("z_order", "double_buffer"))
    assert (one, two) == (2 * 2, 1 + 2)  # of two tiles; the first of two buffers has to be filled beforehand


def test_bands_of_blocks_read_less_of_a_and_b_at_a_time():
    def tiles_read(place):
        """Rows of blocks and columns of blocks that the first 264 of 64 x 64 blocks stand in."""
        where = [place(block, 64, 64) for block in range(264)]
        return len({row for row, _ in where}) + len({column for _, column in where})

    assert tiles_read(blocks_in_rows.py_func) == 5 + 64
    assert tiles_read(blocks_in_bands(8).py_func) == 8 + 33


@pytest.mark.parametrize(("down", "across"), [(1, 1), (8, 3), (9, 5), (17, 2)])
def test_every_place_of_the_grid_has_one_block(down, across):
    for place in (blocks_in_rows, blocks_in_bands(8)):
        where = {place.py_func(block, down, across) for block in range(down * across)}
        assert where == {(row, column) for row in range(down) for column in range(across)}


def test_the_pipelined_step_s_copies_take_no_registers_and_no_conflicts():
    copied = counters(STEPS["pipelined"], 128, 128, 16)
    copies = copied[COPIED.format("requests")]
    assert copied[REQUESTS.format(LD)] == copies, "no other loads"
    # 2 * 16 / 8 requests of 4 bytes a lane for A by each of 8 warps, 2 of 16 bytes for B, of which one a tile is there
    assert copies == 8 * (8 + 2)
    assert copied["smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum"] == 8 * (8 + 2 * 4)
