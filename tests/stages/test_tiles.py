"""The stages of a matrix product, each alone: tiles on their way, shares of threads, places of lanes, unrolling."""

import numpy as np
import pytest

from normlab.engine import cuda, float32, launch, store, using
from normlab.kernels.sgemm import step_7_warp_tile, step_8_z_order, step_11_pipelined, tiling
from normlab.stages.lanes import lanes_in_rows, lanes_in_z_order, warps_in_rows
from normlab.stages.thread_tile import RUN, Share, outer_product, part_loader, share_storer
from normlab.stages.tile import tile_fetcher, tile_loader, tile_putter, transposed_putter
from normlab.stages.unroll import repeated

DOWN, ACROSS, THREADS = 8, 16, 32
ELEMENTS = DOWN * ACROSS // THREADS
rng = np.random.default_rng(0)


def matrix(m, n):
    return rng.normal(size=(m, n)).astype(np.float32)


def expected_tile(array, top, left):
    tile = np.zeros((DOWN, ACROSS), np.float32)
    inside = array[top : top + DOWN, left : left + ACROSS]
    tile[: inside.shape[0], : inside.shape[1]] = inside
    return tile


@pytest.fixture(autouse=True)
def simulated():
    with using("simulator"):
        yield


@pytest.mark.parametrize(("top", "left"), [(0, 0), (8, 16), (16, 0), (40, 40)])
@pytest.mark.parametrize(("columns", "width"), [(36, 4), (34, 2), (33, 1)])
def test_tiles_hold_their_part_of_the_matrix_and_zeros_outside_of_it(columns, width, top, left):
    fetch = tile_fetcher(DOWN, ACROSS, width, THREADS)
    put = tile_putter(DOWN, ACROSS, width, THREADS)
    turn = transposed_putter(DOWN, ACROSS, width, THREADS, DOWN + 1)
    load_tile = tile_loader(DOWN, ACROSS, THREADS)

    @cuda.jit
    def kernel(array, top, left, loaded, plain, turned):
        values = cuda.local.array(ELEMENTS, float32)
        thread = cuda.threadIdx.x
        load_tile(loaded, array, top, left, thread)
        fetch(values, array, top, left, thread)
        put(plain, 4, values, thread)
        turn(turned, 5, values, thread)

    array = matrix(20, columns)
    loaded = np.full((DOWN, ACROSS), np.nan, np.float32)
    plain = np.full(4 + DOWN * ACROSS, np.nan, np.float32)
    turned = np.full(5 + ACROSS * (DOWN + 1), np.nan, np.float32)
    launch(kernel, 1, THREADS, array, top, left, loaded, plain, turned)
    want = expected_tile(array, top, left)
    np.testing.assert_array_equal(loaded, want)
    np.testing.assert_array_equal(plain[4:].reshape(DOWN, ACROSS), want)
    np.testing.assert_array_equal(turned[5:].reshape(ACROSS, DOWN + 1)[:, :DOWN], want.T)
    assert np.isnan(turned[5:].reshape(ACROSS, DOWN + 1)[:, DOWN]).all()  # the padding is left alone


def test_a_thread_s_part_its_outer_product_and_its_store_fit_together():
    rows, columns = Share(runs=2, span=12), Share(runs=1, span=RUN)
    load_rows, load_columns = part_loader(rows), part_loader(columns)
    multiply = outer_product(rows.elements, columns.elements)
    store_share = share_storer(rows, columns, 2)

    @cuda.jit
    def kernel(a, b, alpha, beta, c, output, top, left):
        a_part = cuda.local.array(8, float32)
        b_part = cuda.local.array(4, float32)
        sums = cuda.local.array(32, float32)
        for i in range(32):
            sums[i] = float32(1)
        load_rows(a_part, 0, a, 4)
        load_columns(b_part, 0, b, 8)
        multiply(sums, a_part, b_part, 0)
        store_share(output, sums, alpha, beta, c, top, left)

    a, b, c = rng.normal(size=32).astype(np.float32), rng.normal(size=16).astype(np.float32), matrix(17, 6)
    output = np.full((17, 6), np.nan, np.float32)
    launch(kernel, 1, 1, a, b, np.float32(2), np.float32(3), c, output, 1, 4)
    mine = [1, 2, 3, 4, 13, 14, 15, 16]
    want = 2 * (1 + np.multiply.outer(a[[row + 3 for row in mine]], b[8:10])) + 3 * c[mine][:, 4:6]
    np.testing.assert_allclose(output[mine][:, 4:6], want, rtol=1e-6)
    output[np.ix_(mine, [4, 5])] = np.nan
    assert np.isnan(output).all()


@pytest.mark.parametrize("count", [1, 2, 7, 8])
def test_a_repeated_step_is_made_for_every_k_in_order(count):
    @cuda.jit(device=True)
    def step(k, places, order):
        store(order, k, places[0])
        places[0] += 1

    steps = repeated(step, count)

    @cuda.jit
    def kernel(places, order):
        steps(2, places, order)

    order = np.full(count + 2, -1)
    launch(kernel, 1, 1, np.zeros(1, np.int64), order)
    np.testing.assert_array_equal(order, [-1, -1, *range(count)])


def test_lanes_in_z_order_fill_4_x_8_and_share_a_row_or_a_column_with_their_neighbours():
    places = [lanes_in_z_order.py_func(lane) for lane in range(32)]
    assert set(places) == {(row, column) for row in range(4) for column in range(8)}
    for lane, (row, column) in enumerate(places):
        assert places[lane ^ 1] == (row, column ^ 1)
        assert places[lane ^ 2] == (row ^ 1, column)


def test_lanes_in_rows_fill_their_rectangle():
    for down in (4, 8):
        places = [lanes_in_rows(down).py_func(lane) for lane in range(32)]
        assert places == [(row, column) for row in range(down) for column in range(32 // down)]


def places_of(place, threads):
    """(row, column) of each thread's first element."""

    @cuda.jit
    def kernel(rows, columns):
        row, column = place(cuda.threadIdx.x)
        rows[cuda.threadIdx.x] = row
        columns[cuda.threadIdx.x] = column

    rows, columns = np.zeros((2, threads), np.int64)
    launch(kernel, 1, threads, rows, columns)
    return list(zip(rows, columns, strict=True))


def covered(rows, columns, places, down, across):
    """How many threads have each element of the block's tile."""
    tile = np.zeros((down, across), int)
    for place in places:
        mine = [
            [first + run * share.span + q for run in range(share.runs) for q in range(RUN)]
            for first, share in zip(place, (rows, columns), strict=True)
        ]
        tile[np.ix_(*mine)] += 1
    return tile


@pytest.mark.parametrize(
    "built", [step_7_warp_tile.TILING, step_8_z_order.TILING, tiling.of_warps(8, 4, lanes_in_rows(8))]
)
def test_the_threads_of_a_block_share_its_tile_out_among_them(built):
    places = places_of(built.place, tiling.THREADS)
    assert (covered(built.rows, built.columns, places, tiling.ROWS, tiling.COLUMNS) == 1).all()


@pytest.mark.parametrize(
    "plan", [step_11_pipelined.PLAN, step_11_pipelined.PLAN._replace(runs_across=4, warps_down=2, warps_across=4)]
)
def test_the_threads_of_a_plan_share_its_tile_out_among_them(plan):
    rows, columns = Share(plan.runs_down, RUN * 4), Share(plan.runs_across, RUN * 8)
    place = warps_in_rows(plan.warps_across, 4 * rows.elements, 8 * columns.elements, RUN, lanes_in_z_order)
    assert (covered(rows, columns, places_of(place, plan.threads), plan.rows, plan.columns) == 1).all()


@pytest.mark.parametrize("shape", [(8, 12, 4, 32), (4, 6, 4, 6)])
def test_a_tile_that_threads_cannot_share_is_refused(shape):
    down, across, width, threads = shape
    with pytest.raises(ValueError, match=f"{down} x {across} elements must have rows of whole vectors of {width}"):
        tile_fetcher(down, across, width, threads)
