"""`trace`: what it counts, by hand."""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32, float64

from normlab.engine import load_vector, store_vector
from normlab.kernels import LADDERS, ForwardProblem
from normlab.sim import METRICS, Trace, simulate, trace
from normlab.sim.tracing.log import Log

LD, ST = (
    {
        "requests": f"l1tex__t_requests_pipe_lsu_mem_global_op_{operation}.sum",
        "sectors": f"l1tex__t_sectors_pipe_lsu_mem_global_op_{operation}.sum",
        "ratio": f"l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_{operation}.ratio",
        "wavefronts": f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{operation}.sum",
        "conflicts": f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{operation}.sum",
        "unique": f"normlab__bytes_unique_mem_global_op_{operation}.sum",
        "moved": f"normlab__bytes_moved_mem_global_op_{operation}.sum",
    }
    for operation in ("ld", "st")
)


def of(counted: Trace, names: dict, *which: str) -> list[float]:
    return [counted.metrics[names[name]] for name in which]


def floats(*shape: int, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


@cuda.jit
def copy(x, y, stride, offset):
    i = cuda.grid(1)
    y[i] = x[i * stride + offset]


@pytest.mark.parametrize(
    ("stride", "offset", "dtype", "sectors"),
    [
        (1, 0, np.float32, 4),
        (2, 0, np.float32, 8),
        (8, 0, np.float32, 32),
        (1, 1, np.float32, 5),
        (0, 3, np.float32, 1),
        (1, 0, np.float64, 8),
        (1, 0, np.float16, 2),
        (1, 0, ml_dtypes.bfloat16, 2),
        (1, 0, np.int8, 1),
        (1, 0, np.int32, 4),
        (-1, 31, np.float32, 4),
    ],
)
def test_sectors_of_a_strided_copy(stride, offset, dtype, sectors):
    counted = trace(copy)[1, 32](np.ones(300, dtype), np.zeros(32, dtype), stride, offset)
    assert of(counted, LD, "requests", "sectors", "ratio") == [1, sectors, sectors]


def test_metrics_have_meanings_and_a_launch_without_memory_has_only_zeros():
    @cuda.jit
    def nothing(n):
        cuda.syncwarp()

    counted = trace(nothing)[1, 32](3)
    assert counted.metrics.keys() == METRICS.keys()
    assert {name for name, value in counted.metrics.items() if value} == {"normlab__warp_syncs.sum"}
    assert all(metric.meaning.endswith(".") for metric in METRICS.values())


def test_unique_bytes_are_the_compulsory_traffic():
    @cuda.jit
    def broadcast(x, y):
        y[cuda.grid(1)] = x[0] + x[1]

    counted = trace(broadcast)[4, 64](floats(64), floats(256))
    assert of(counted, LD, "unique", "moved") == [8, 2 * 8 * 32]
    assert of(counted, ST, "unique", "moved") == [1024, 1024]


def test_a_view_of_an_argument_keeps_its_place_in_the_allocation():
    @cuda.jit
    def read(x, y):
        y[cuda.threadIdx.x] = x[cuda.threadIdx.x]

    base = floats(64)
    assert of(trace(read)[1, 32](base[1:33], floats(32)), LD, "sectors") == [5]
    assert of(trace(read)[1, 32](base[8:40], floats(32)), LD, "sectors") == [4]


def test_views_rows_and_slices_in_the_kernel():
    @cuda.jit
    def rows(x, y):
        row = x[cuda.blockIdx.x]
        y[cuda.blockIdx.x, cuda.threadIdx.x] = row[cuda.threadIdx.x]

    counted = trace(rows)[3, 32](floats(3, 32), floats(3, 32))
    assert of(counted, LD, "requests", "sectors", "unique") == [3, 12, 384]

    @cuda.jit
    def fill(x):
        if cuda.threadIdx.x == 0:
            x[2:6] = 1

    counted = trace(fill)[1, 32](floats(8))
    assert of(counted, ST, "requests", "unique") == [4, 16]


def test_negative_indices_and_reversed_arguments_count_in_the_right_place():
    @cuda.jit
    def last(x, y):
        y[cuda.threadIdx.x] = x[-1 - cuda.threadIdx.x]

    x = floats(32)
    counted = trace(last)[1, 4](x, floats(32))
    assert list(np.flatnonzero(counted.array("x").counted(stores=False))) == [28, 29, 30, 31]
    counted = trace(last)[1, 4](x[::-1], floats(32))
    assert list(np.flatnonzero(counted.array("x").counted(stores=False))) == [28, 29, 30, 31]


def test_heat_of_two_dimensions_in_any_layout():
    @cuda.jit
    def touch(x):
        x[1, cuda.threadIdx.x] += 1

    for x in (floats(3, 4), np.asfortranarray(floats(3, 4)), floats(6, 8)[::2, ::2], floats(3, 4)[::-1, ::-1]):
        heat = trace(touch)[1, 4](x).array("x")
        want = np.zeros((3, 4))
        want[1] = 1
        assert (heat.counted(stores=False) == want).all()
        assert (heat.counted(stores=True) == want).all()


def test_sixteen_byte_vectors_are_one_request():
    @cuda.jit
    def copy16(x, y):
        i = 4 * cuda.grid(1)
        store_vector(y, i, load_vector(x, i, 4))

    x, y = floats(256), np.zeros(256, np.float32)
    counted = trace(copy16)[1, 64](x, y)
    assert (x == y).all()
    assert of(counted, LD, "requests", "sectors", "ratio", "unique") == [2, 32, 16, 1024]
    assert of(counted, ST, "requests", "sectors", "unique") == [2, 32, 1024]


def test_a_complex_number_is_loaded_in_two_parts():
    @cuda.jit
    def double(x, y):
        y[cuda.grid(1)] = x[cuda.grid(1)] * 2

    counted = trace(double)[1, 64](np.ones(64, np.complex64), np.ones(64, np.complex64))
    assert of(counted, LD, "requests", "sectors", "unique") == [4, 32, 512]


def test_fields_of_records():
    state = np.dtype([("a", np.float32), ("b", np.float64)], align=True)

    @cuda.jit
    def kernel(x):
        i = cuda.threadIdx.x
        x[i].b = x[i].a

    counted = trace(kernel)[1, 32](np.zeros(32, state))
    assert of(counted, LD, "requests", "sectors") == [1, 16]
    assert of(counted, ST, "requests", "sectors") == [1, 16]


@cuda.jit
def transpose(x, y, pad):
    tile = cuda.shared.array((32, 32), float32) if not pad else cuda.shared.array((32, 33), float32)
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    tile[j, i] = x[j, i]
    cuda.syncthreads()
    y[j, i] = tile[i, j]


@pytest.mark.parametrize(("pad", "wavefronts"), [(False, 32 * 32), (True, 32)])
def test_a_padded_tile_has_no_conflicts(pad, wavefronts):
    counted = trace(transpose)[1, (32, 32)](floats(32, 32), floats(32, 32), pad)
    assert of(counted, LD, "wavefronts", "conflicts") == [wavefronts, wavefronts - 32]
    assert of(counted, ST, "wavefronts", "conflicts") == [32, 0]


def test_float64_in_shared_memory_goes_by_half_warps():
    @cuda.jit
    def kernel(x):
        s = cuda.shared.array(64, float64)
        s[cuda.threadIdx.x] = x[cuda.threadIdx.x]
        cuda.syncthreads()
        x[cuda.threadIdx.x] = s[2 * cuda.threadIdx.x % 64]

    counted = trace(kernel)[1, 32](floats(32, dtype=np.float64))
    assert of(counted, ST, "wavefronts", "conflicts") == [2, 0]
    assert of(counted, LD, "wavefronts", "conflicts") == [4, 2]


def test_lanes_in_different_turns_of_a_loop_do_not_run_together():
    @cuda.jit
    def compact(keep, x, y):
        for turn in range(4):
            i = 32 * turn + cuda.threadIdx.x
            if keep[i]:
                y[i] = x[i]

    keep = np.zeros(128, bool)
    keep[[0, 33, 66, 99, 3]] = True  # lane 0 in turn 0, lane 1 in turn 1, …
    counted = trace(compact)[1, 32](keep, floats(128), floats(128))
    assert counted.by_line()[-1].metrics[LD["requests"]] == 4
    assert counted.by_line()[-1].metrics[ST["requests"]] == 4


def test_one_function_called_in_two_branches_is_two_requests():
    @cuda.jit(device=True)
    def get(x, i):
        return x[i]

    @cuda.jit
    def kernel(x, y):
        i = cuda.threadIdx.x
        if i % 2:
            y[i] = get(x, i)
        else:
            y[i] = get(x, i) + 1

    assert of(trace(kernel)[1, 32](floats(32), floats(32)), LD, "requests") == [2]


def test_a_loop_in_a_function_left_by_return_and_a_loop_after_it():
    @cuda.jit(device=True)
    def find(x, wanted):
        for i in range(x.shape[0]):
            if x[i] >= wanted:
                return i
        return x.shape[0]

    @cuda.jit
    def kernel(x, y):
        lane = cuda.threadIdx.x
        at = find(x, lane)
        for _ in range(2):
            y[lane] = at

    x = np.arange(8, dtype=np.float32)
    counted = trace(kernel)[1, 8](x, floats(8))
    assert of(counted, LD, "requests") == [8]  # turn by turn, fewer lanes
    assert of(counted, ST, "requests") == [2]


def test_while_loops_count_their_condition_once_a_turn():
    @cuda.jit
    def kernel(x, y):
        i = cuda.threadIdx.x
        n = 0
        while x[i] > n:
            n += 1
        y[i] = n

    counted = trace(kernel)[1, 32](np.full(32, 3, np.float32), floats(32))
    assert of(counted, LD, "requests") == [4]


def test_shuffles_votes_barriers_and_atomics():
    @cuda.jit
    def kernel(x, y):
        s = cuda.shared.array(1, float32)
        i = cuda.threadIdx.x
        if i == 0:
            s[0] = 0
        cuda.syncthreads()
        value = cuda.shfl_down_sync(0xFFFFFFFF, x[i], 1)
        cuda.any_sync(0xFFFFFFFF, value > 0)
        cuda.syncwarp()
        cuda.atomic.add(s, 0, value)
        cuda.syncthreads()
        if i < 2:
            cuda.atomic.add(y, 0, s[0])

    counted = trace(kernel)[2, 64](floats(64), np.zeros(1, np.float32))
    for name, want in {
        "shuffles": 4,
        "votes": 4,
        "warp_syncs": 4,
        "barriers": 4,
        "atomics_mem_shared": 128,
        "atomics_mem_global": 4,
    }.items():
        assert counted.metrics[f"normlab__{name}.sum"] == want
    assert of(counted, LD, "requests") == [4]  # atomics apart


def test_local_memory_is_not_counted():
    @cuda.jit
    def kernel(x):
        mine = cuda.local.array(4, float32)
        for i in range(4):
            mine[i] = i
        x[cuda.threadIdx.x] = mine[2]

    counted = trace(kernel)[1, 32](floats(32))
    assert of(counted, ST, "requests") == [1]
    assert of(counted, LD, "requests") == [0]


def test_grid_syncs_and_lanes_active():
    @cuda.jit
    def kernel(x):
        if cuda.threadIdx.x < 8:
            x[cuda.grid(1)] = 1
        cuda.cg.this_grid().sync()

    counted = trace(kernel)[2, 32](floats(64))
    assert counted.metrics["normlab__grid_syncs.sum"] == 1
    assert counted.metrics["normlab__average_lanes_per_request.ratio"] == 8


@pytest.mark.parametrize("schedule", ["reverse", 3])
def test_counts_do_not_depend_on_the_schedule(schedule):
    def counted(schedule):
        traces = []
        rng = np.random.default_rng(1)
        x, y = rng.normal(size=(2, 3, 100)).astype(np.float32)
        w = rng.normal(size=100).astype(np.float32)
        mean, invvar = np.zeros((2, 3), np.float32)

        def launch(kernel, grid, block, *args):
            traces.append(trace(kernel, schedule)[grid, block](*args))

        for step in LADDERS["forward"]:
            step.run(launch, None, ForwardProblem(x, w, w, np.float32(1e-5), y, mean, invvar))
        return [one.as_dict() for one in traces]

    assert counted(schedule) == counted("forward")


def test_tracing_changes_no_result():
    x = floats(5, 77)
    for step in LADDERS["forward"]:
        results = []
        for how in (simulate, trace):
            out, mean, invvar = np.empty_like(x), np.empty(5, np.float32), np.empty(5, np.float32)
            step.run(
                lambda kernel, grid, block, *args, how=how: how(kernel)[grid, block](*args),
                None,
                ForwardProblem(x, x[0], x[1], np.float32(1e-5), out, mean, invvar),
            )
            results.append((out, mean, invvar))
        for one, other in zip(*results, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("engine", "where"), [("scheduler", "recorder"), ("vectorised", "lanes")])
def test_a_long_log_is_counted_in_parts(engine, where, monkeypatch):
    whole = trace(transpose, engine=engine)[3, (32, 32)](floats(32, 32), floats(32, 32), False)
    monkeypatch.setattr(f"normlab.sim.tracing.{where}.LONG", 500)
    parts = trace(transpose, engine=engine)[3, (32, 32)](floats(32, 32), floats(32, 32), False)
    assert whole.as_dict() == parts.as_dict()


def test_requests_of_a_line_first_costliest_or_all():
    line = transpose.py_func.__code__.co_firstlineno + 6  # y[j, i] = tile[i, j]
    counted = trace(transpose)[1, (32, 32)](floats(32, 32), floats(32, 32), False)
    (read,) = counted.requests(line, "ld")
    assert (read.array, read.space, read.wavefronts, read.conflicts, read.warp) == ("tile", "shared", 32, 31, 0)
    assert [word % 32 for word in read.words_of(5)] == [0]
    assert "tile" in str(read)
    assert len(counted.requests(line)) == 2
    kept = trace(transpose, keep=line)[1, (32, 32)](floats(32, 32), floats(32, 32), False)
    assert [request.warp for request in kept.requests(line, "ld", "tile")] == list(range(32))
    assert kept.request(line, "ld").wavefronts == 32


def test_clear_errors():
    counted = trace(copy)[1, 32](floats(64), floats(64), 1, 0)
    with pytest.raises(
        ValueError, match=r"line 1 of kernel 'copy' made no memory request; these lines did:\n  \d+: y\["
    ):
        counted.request(1)
    with pytest.raises(ValueError, match="has no array 'z'; it has 'x', 'y'"):
        counted.array("z")
    with pytest.raises(TypeError, match="compare takes another Trace, not int"):
        counted.compare(3)
    with pytest.raises(TypeError, match="keep takes line numbers"):
        trace(copy, keep=["x"])
    with pytest.raises(TypeError, match=r"trace takes a numba.cuda.jit kernel or a Python function, not the int 3"):
        trace(3)
    with pytest.raises(ValueError, match=r"needs a launch configuration: trace\(copy\)\[grid, block\]"):
        trace(copy)(1)
    with pytest.raises(TypeError, match="is an array of object; kernels take arrays of numbers"):
        trace(copy)[1, 32](np.array([None]), floats(2), 1, 0)


def test_a_kernels_own_exception_surfaces():
    @cuda.jit
    def kernel(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        trace(kernel)[1, 1](floats(1))


def test_tables_text_html_and_comparison():
    plain = trace(transpose)[1, (32, 32)](floats(32, 32), floats(32, 32), False)
    padded = trace(transpose)[1, (32, 32)](floats(32, 32), floats(32, 32), True)
    assert "tile[j, i] = x[j, i]" in str(plain)
    assert "1,024" in str(plain)
    comparison = plain.compare(padded)
    assert comparison.metrics[LD["wavefronts"]] == (1024, 32)
    assert "0.03" in str(comparison)
    assert "<table" in plain._repr_html_()
    assert "<table" in comparison._repr_html_()


def test_flows_of_a_butterfly():
    @cuda.jit
    def kernel(x):
        value = x[cuda.threadIdx.x]
        for step in (1, 2, 4, 8, 16):
            value += cuda.shfl_xor_sync(0xFFFFFFFF, value, step)
        x[cuda.threadIdx.x] = value

    flows = trace(kernel)[2, 32](floats(32)).flows
    assert (flows.threads, len(flows.flows)) == (32, 5 * 32)
    assert {flow.source ^ flow.target for flow in flows.flows if flow.end == 3} == {4}


def test_flows_through_shared_memory_go_from_writer_to_reader():
    @cuda.jit
    def kernel(x):
        s = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        s[i] = x[i]
        half = 32
        while half > 0:
            cuda.syncthreads()
            if i < half:
                s[i] += s[i + half]
            half //= 2
        x[i] = s[i]

    flows = trace(kernel)[1, 64](floats(64)).flows
    assert len(flows.flows) == 63
    assert {(flow.source - flow.target, flow.start, flow.end) for flow in flows.flows} == {
        (32 >> step, step, step + 1) for step in range(6)
    }
    assert flows.barriers == [1, 2, 3, 4, 5, 6]


def test_a_function_of_numpy_on_whole_arrays_is_a_loop():
    @cuda.jit
    def kernel(x, y):
        np.sin(x, y)

    x, y = floats(6), np.zeros(6, np.float32)
    counted = trace(kernel)[1, 1](x, y)
    np.testing.assert_array_equal(y, np.sin(x))
    assert of(counted, LD, "requests") == of(counted, ST, "requests") == [6]


def test_early_lanes_and_late_ones_stand_at_one_instruction():
    """The interpreter reports another place of a subscript once it has specialised it."""

    @cuda.jit
    def kernel(x, y):
        y[cuda.threadIdx.x] = x[cuda.threadIdx.x]

    assert of(trace(kernel)[1, 32](floats(32), floats(32)), LD, "requests") == [1]


def test_a_row_stored_by_one_index_is_a_store_of_each_element():
    @cuda.jit
    def kernel(x):
        x[cuda.threadIdx.x] = 0

    assert of(trace(kernel)[1, 32](floats(32, 4)), ST, "requests", "sectors", "unique") == [4, 64, 512]


def test_a_row_stored_in_another_is_loaded_too():
    @cuda.jit
    def kernel(x, y):
        y[cuda.threadIdx.x, :] = x[cuda.threadIdx.x, :]

    x, y = floats(32, 4), np.zeros((32, 4), np.float32)
    counted = trace(kernel)[1, 32](x, y)
    np.testing.assert_array_equal(x, y)
    assert of(counted, LD, "requests", "unique") == of(counted, ST, "requests", "unique") == [4, 512]


def test_lanes_meet_in_the_else_of_a_loop():
    @cuda.jit
    def kernel(x, y):
        i = cuda.threadIdx.x
        for _ in range(i % 4):
            pass
        else:
            y[i] = x[i]
        n = 0
        while n < i % 3:
            n += 1
        else:
            y[i] += 1

    assert of(trace(kernel)[1, 32](floats(32), floats(32)), LD, "requests") == [2]
    assert of(trace(kernel)[1, 32](floats(32), floats(32)), ST, "requests") == [2]


def test_views_of_tensors_and_buffers_keep_their_place_in_the_allocation():
    torch = pytest.importorskip("torch")
    for dtype, sectors in ((torch.float32, 5), (torch.bfloat16, 3)):
        base = torch.zeros(64, dtype=dtype)
        assert of(trace(copy)[1, 32](base[1:33], torch.zeros(32, dtype=dtype), 1, 0), LD, "sectors") == [sectors]
    memory = bytearray(4 * 64)
    shifted = np.frombuffer(memory, np.float32, offset=4)
    assert of(trace(copy)[1, 32](shifted, floats(32), 1, 0), LD, "sectors") == [5]


def test_unique_bytes_do_not_depend_on_names_and_dtypes():
    @cuda.jit
    def both(x, y, out):
        out[cuda.threadIdx.x] = x[cuda.threadIdx.x] + y[cuda.threadIdx.x]

    x = floats(64)
    for other, unique in ((x[:32], 128), (x[16:48], 192), (x[:32].view(np.int32), 128)):
        assert of(trace(both)[1, 32](x[:32], other, floats(32)), LD, "unique") == [unique]
    state = np.zeros(32, np.dtype([("a", np.float32), ("b", np.float64)], align=True))

    @cuda.jit
    def field(x):
        x[cuda.threadIdx.x].a = 1

    assert of(trace(field)[1, 32](state), ST, "unique") == [128]


def test_atomics_are_no_unique_loads_or_stores():
    @cuda.jit
    def kernel(x):
        cuda.atomic.add(x, 0, 1)

    assert of(trace(kernel)[1, 32](floats(1)), LD, "unique") == [0]


def test_heat_of_complex_numbers_and_of_arrays_whose_axes_overlap():
    @cuda.jit
    def touch(x):
        x[cuda.threadIdx.x] += 1

    assert (trace(touch)[1, 4](np.zeros(4, np.complex128)).array("x").counted(stores=False) == 1).all()

    @cuda.jit
    def window(x, y):
        y[cuda.threadIdx.x] = x[cuda.threadIdx.x, 3]

    windows = np.lib.stride_tricks.sliding_window_view(floats(9), 4)
    counted = trace(window)[1, 6](windows, floats(6))
    assert counted.array("x").counted(stores=False).sum() == 6
    assert of(counted, LD, "unique") == [24]


@cuda.jit
def many_accesses(x, y):
    i = cuda.grid(1)
    for _ in range(60):
        y[i] = x[i] + y[i]
    cuda.cg.this_grid().sync()
    y[i] = x[i]


def test_the_log_is_emptied_when_warps_end_or_stand(monkeypatch):
    whole = trace(many_accesses, engine="scheduler")[4, 96](floats(384), floats(384))
    monkeypatch.setattr("normlab.sim.tracing.recorder.LONG", 300)
    longest = []
    take = Log.take
    monkeypatch.setattr(Log, "take", lambda log: longest.append(len(log)) or take(log))
    traced = trace(many_accesses, engine="scheduler")[4, 96](floats(384), floats(384))
    assert traced.as_dict() == whole.as_dict()
    assert of(whole, LD, "requests") == [12 * 121]
    longest.clear()
    trace(transpose, engine="scheduler")[4, (32, 32)](floats(32, 32), floats(32, 32), False)
    assert max(longest) < 3000  # of 4 x 4096 accesses


def test_a_record_is_stored_in_another_field_by_field():
    state = np.dtype([("a", np.float32), ("b", np.float64)], align=True)

    @cuda.jit
    def kernel(x, y):
        x[cuda.threadIdx.x] = y[cuda.threadIdx.x]

    x, y = np.zeros(4, state), np.ones(4, state)
    counted = trace(kernel)[1, 4](x, y)
    assert (x == y).all()
    assert of(counted, LD, "requests", "unique") == of(counted, ST, "requests", "unique") == [2, 48]


def test_an_index_error_names_the_array_under_trace_too():
    @cuda.jit
    def kernel(x):
        s = cuda.shared.array((2, 3), float32)
        if cuda.threadIdx.x == 0:
            s[1, 3] = 0
        x[cuda.threadIdx.x] = 1

    for how in (simulate, trace):
        with pytest.raises(IndexError) as info:
            how(kernel)[1, 2](floats(1))
        assert info.value.__notes__[0] == "'s' is a shared array of shape (2, 3)"
