"""The fast steps: a row's bits depend on no other row, on no schedule and on no run; any offset and any n2 is right."""

from dataclasses import replace

import devices
import ml_dtypes
import numpy as np
import pytest
from draws import Case
from examine import backward, examine_backward, examine_forward, forward, statistics
from watching import Memory, launcher

from normlab.engine import use_gpu, using
from normlab.host import replay
from normlab.host.arrays import HostBackend
from normlab.host.checks import step_of
from normlab.kernels import BackwardProblem, ForwardProblem
from normlab.kernels.backward import final_sums, layouts, step_2_fused, step_3_pipelined
from normlab.kernels.backward.pipelined import beside
from normlab.kernels.backward.pipelined.layout import PipelineLayout
from normlab.kernels.backward.short_rows import plan as short_rows
from normlab.kernels.backward.tables import Candidate
from normlab.kernels.forward import layouts as forward_layouts
from normlab.kernels.forward import step_7_clusters
from normlab.kernels.plan import Chosen
from normlab.stages.vector import ThreadMap

BFLOAT16 = ml_dtypes.bfloat16
FORWARD = [step_of("forward", name) for name in ("vectors", "one_barrier", "clusters")]
BACKWARD = [step_of("backward", name) for name in ("fused", "pipelined")]
forward_steps = pytest.mark.parametrize("step", FORWARD, ids=lambda step: step.name)
backward_steps = pytest.mark.parametrize("step", BACKWARD, ids=lambda step: step.name)
both_paths = pytest.mark.parametrize("memory_efficient", [False, True], ids=["saved", "recompute"])


def random_case(n1, n2, dtype, rms=False, parameters=None, seed=0) -> Case:
    """Gammas around eps, too, so that some are clamped."""
    rng = np.random.default_rng(seed)
    x, grad = rng.normal(size=(2, n1, n2)) + 0.5
    weight, bias = rng.normal(size=(2, n2))
    weight[::7] = 1e-3
    v = parameters or dtype
    return Case(x.astype(dtype), weight.astype(v), None if rms else bias.astype(v), grad.astype(v), 0.01, rms)


def bits(array):
    return None if array is None else array.tobytes()


# Rows of one warp, of several, of several row groups a block; ragged ones.
SHAPES = [(1, np.float32), (130, BFLOAT16), (1040, BFLOAT16), (501, np.float16)]
shapes = pytest.mark.parametrize(("n2", "dtype"), SHAPES, ids=lambda one: getattr(one, "__name__", str(one)))


@forward_steps
@shapes
@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
def test_a_row_s_results_have_the_same_bits_in_every_batch(step, n2, dtype, rms):
    case = random_case(50 if n2 < 100 else 5, n2, dtype, rms)
    want = forward(case, step)
    for n1 in (1, 3):
        got = forward(replace(case, x=case.x[:n1]), step)
        assert [bits(array) for array in got] == [bits(None if array is None else array[:n1]) for array in want]


@pytest.mark.parametrize("n2", [64, 130, 512, 1040, 4096])
@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
def test_a_row_has_the_same_bits_whether_all_rows_find_room_at_once(n2, rms, monkeypatch):
    """Then blocks have fewer rows, and their parameters come early."""
    case, step = random_case(9, n2, BFLOAT16, rms), FORWARD[1]
    want = results(case, step)
    devices.plan_for(monkeypatch, multiprocessors=1, registers=1)
    replay._cached.clear()
    assert results(case, step) == want


@backward_steps
@shapes
@both_paths
def test_a_row_s_grad_input_has_the_same_bits_in_every_batch(step, n2, dtype, memory_efficient, monkeypatch):
    monkeypatch.setattr(final_sums, "sums_of", lambda *args: ())  # of the other gradients, and most of the time
    case = random_case(50 if n2 < 100 else 5, n2, dtype)
    output, mean, invvar = statistics(case)
    saved = output if memory_efficient else case.x
    want = backward(case, step, saved, mean, invvar, memory_efficient)[0]
    for n1 in (1, 3):
        few = replace(case, x=case.x[:n1], grad_output=case.grad_output[:n1])
        assert bits(backward(few, step, saved[:n1], mean[:n1], invvar[:n1], memory_efficient)[0]) == bits(want[:n1])


def results(case, step, memory_efficient=None) -> list:
    """The bits of everything that a step computes."""
    if memory_efficient is None:
        return [bits(array) for array in forward(case, step)]
    output, mean, invvar = statistics(case)
    saved = output if memory_efficient else case.x
    return [bits(array) for array in backward(case, step, saved, mean, invvar, memory_efficient)]


def assert_the_same_whenever_and_however_it_runs(case, step, memory_efficient=None):
    """On a GPU, if there is one, in a second run; in the simulator, in second and third runs by other schedules."""
    if use_gpu():
        assert results(case, step, memory_efficient) == results(case, step, memory_efficient)
    with using("simulator"):
        want = results(case, step, memory_efficient)
    for schedule in ("reverse", 1):
        with using("simulator", schedule):
            assert results(case, step, memory_efficient) == want, f"schedule {schedule}"


@forward_steps
@pytest.mark.parametrize(("n2", "dtype"), [(1024, BFLOAT16), (501, np.float32)], ids=str)
def test_neither_a_second_run_nor_a_schedule_changes_a_bit_of_the_forward(step, n2, dtype):
    assert_the_same_whenever_and_however_it_runs(random_case(3, n2, dtype), step)


RUNS = [(9, 396, BFLOAT16, False), (5, 201, np.float32, True)]  # on a GPU, which takes no time for them, on both paths
if use_gpu():
    RUNS += [(*shape, not memory_efficient) for *shape, memory_efficient in RUNS]


@backward_steps
@pytest.mark.parametrize(("n1", "n2", "dtype", "memory_efficient"), RUNS, ids=str)
def test_neither_a_second_run_nor_a_schedule_changes_a_bit_of_any_gradient(step, n1, n2, dtype, memory_efficient):
    assert_the_same_whenever_and_however_it_runs(random_case(n1, n2, dtype), step, memory_efficient)


def shifted(array, offset):
    """The same values, so many elements behind a multiple of 16 bytes, contiguous."""
    memory = np.zeros(array.nbytes + 32, np.uint8)
    start = -memory.ctypes.data % 16 + offset * array.itemsize
    moved = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


OFFSETS = [(1, 0), (0, 1), (2, 3)]  # of the matrices, of the parameters


@pytest.mark.parametrize(("matrices", "parameters"), OFFSETS)
@pytest.mark.parametrize("dtype", [BFLOAT16, np.float32])
def test_any_storage_offset_is_right(matrices, parameters, dtype):
    """A slice such as x.reshape(-1)[1:] begins between two vectors; on a GPU the offset stays, for torch's tensors."""
    case = random_case(3, 136, dtype)
    case = replace(
        case,
        x=shifted(case.x, matrices),
        grad_output=shifted(case.grad_output, matrices),
        weight=shifted(case.weight, parameters),
        bias=shifted(case.bias, parameters),
    )
    for step in FORWARD:
        examine_forward(case, step)
    for step in BACKWARD:
        for memory_efficient in (False, True):
            examine_backward(case, None, step, memory_efficient)


COLUMNS = [1, 3, 33, 100, 257]
KINDS = {
    (BFLOAT16, BFLOAT16): [1, 33, 100, 257],
    (np.float32, np.float16): [3, 100, 257],
    (np.float16, np.float32): [33, 100],
}
# each an odd number, which has no vectors, and an even one; on a GPU, which takes no time for them, all of all
NUMBERS = [(n2, *kind) for kind, some in KINDS.items() for n2 in (COLUMNS if use_gpu() else some)]


@pytest.mark.parametrize(("n2", "t", "v"), NUMBERS)
def test_any_number_of_columns_is_right(n2, t, v):
    case = random_case(3, n2, t, parameters=v)
    for step in FORWARD:
        examine_forward(case, step)
    for step in BACKWARD:
        for memory_efficient in (False, True):
            examine_backward(case, None, step, memory_efficient)


@pytest.mark.parametrize(
    ("n2", "memory_efficient"),
    [(2054, False), (2054, True), (2054, "exact"), (4102, True)],
    ids=["2 blocks-saved", "2 blocks-recompute", "2 blocks-exact", "4 blocks-recompute"],
)
def test_rows_of_a_cluster_are_right_in_the_backward(n2, memory_efficient):
    examine_backward(random_case(2, n2, BFLOAT16), None, step_of("backward", "pipelined"), memory_efficient)


@pytest.mark.parametrize(
    ("n1", "n2", "dtype", "processors"), [(1, 32770, BFLOAT16, 132), (2, 32776, BFLOAT16, 1), (2, 32772, np.float32, 1)]
)
def test_rows_of_a_cluster_are_right_in_the_forward(n1, n2, dtype, processors, monkeypatch):
    """Vectors of two, as few rows by 16 blocks; of eight and four, as many rows by 4 and 8: one cluster has both."""
    few_stay(monkeypatch)
    devices.plan_for(monkeypatch, multiprocessors=processors)
    with using("simulator"):
        examine_forward(random_case(n1, n2, dtype), step_of("forward", "clusters"))


def test_short_rows_are_right_forward():
    """Of 4 lanes, with columns for all and not, in more than one block; the last block has row groups without a row."""
    for n2 in (64, 40):
        examine_forward(random_case(70, n2, BFLOAT16), step_of("forward", "one_barrier"))


def few_stay(monkeypatch, number=1):
    """Let one block, or cluster, or so many do all rows, as on a GPU whose every block has many."""
    devices.find_room_for(monkeypatch, number)
    monkeypatch.setattr(step_2_fused, "blocks_for", lambda thread_map, n1, processors: number)
    devices.many_rows(monkeypatch)
    # new memory may hold what was right a moment ago
    monkeypatch.setattr(HostBackend, "empty", lambda backend, shape, dtype: np.full(shape, np.nan, dtype))


def lay_out(layout, monkeypatch):
    """Let the pipelined backward take any rows, laid out so."""
    monkeypatch.setattr(short_rows, "layout_for", lambda *how: None)
    monkeypatch.setattr(step_3_pipelined, "layout_for", lambda *how: Chosen(layout, "a test"))


WITHOUT_PREFETCH = 402  # columns of float32
NO_PREFETCH = Candidate(columns_up_to=1024, threads=64, rows=4, stages=3, why="a test")


def in_half_vectors(monkeypatch):
    """Let rows that vectors of half the width would do come in those, also where whole vectors are faster."""
    monkeypatch.setattr(layouts, "whole_vectors_pay", lambda *how: False)


def no_prefetch_at(n2, monkeypatch):
    """Let so short rows be laid out as a few times longer ones are: several warps, and no prefetch."""
    in_half_vectors(monkeypatch)
    if n2 == WITHOUT_PREFETCH:
        monkeypatch.setattr(layouts, "table_for", lambda *how: (NO_PREFETCH,))


# Rows of a part of a warp, of one and of several, 32 of them a block, eight and four; with a prefetch except for
# the second and the last, and recomputing the first.
TURNS = [
    (70, 128, BFLOAT16),
    (19, 392, BFLOAT16),
    (5, 388, np.float32),
    (18, 396, BFLOAT16),
    (9, WITHOUT_PREFETCH, np.float32),
]
turns = pytest.mark.parametrize(("n1", "n2", "dtype"), TURNS, ids=lambda one: getattr(one, "__name__", str(one)))


@pytest.mark.skipif(use_gpu(), reason="for the simulator: a GPU has many rows a block in other tests")
@turns
@backward_steps
@both_paths
def test_many_rows_per_block_are_right(step, n1, n2, dtype, memory_efficient, monkeypatch):
    case = random_case(n1, n2, dtype)
    no_prefetch_at(n2, monkeypatch)
    with monkeypatch.context() as patch:  # first what a mutant's mistake is in
        few_stay(patch)
        examine_backward(case, None, step, memory_efficient)
        patch.setattr(final_sums, "sums_of", lambda *args: ())  # of the other gradients
        with using("simulator", "reverse"):
            got = results(case, step, memory_efficient)[0]
    monkeypatch.setattr(final_sums, "sums_of", lambda *args: ())
    assert got == results(case, step, memory_efficient)[0], "how many blocks stay changes grad_input"


# Vectors of four, two and one element; one row group per block and 16; warps that share columns, and two times as many.
FEW = [(9, 396, np.float16), (17, 262, np.float32), (5, 1032, np.float32), (70, 128, BFLOAT16), (11, 333, BFLOAT16)]


@pytest.mark.parametrize("turn", range(len(FEW)), ids=lambda turn: "-".join(map(str, FEW[turn][:2])))
def test_few_rows_with_blocks_for_the_columns_are_right_and_nothing_is_found(turn, monkeypatch):
    """Each kind is right on both paths, and watched on one of them in turn."""
    in_half_vectors(monkeypatch)
    n1, n2, dtype = FEW[turn]
    case, step = random_case(n1, n2, dtype), step_of("backward", "pipelined")
    for memory_efficient in (False, True):
        examine_backward(case, None, step, memory_efficient)
    if turn == 0:
        examine_backward(random_case(n1, n2, dtype, rms=True), None, step, False)  # no grad_bias
        examine_backward(replace(case, weight=None), None, step, True)  # no grad_weight
    with using("simulator"):
        sanitized(case, step, turn % 2 == 1)


@pytest.mark.skipif(use_gpu(), reason="for the simulator: a GPU has compiled the number of blocks")
@pytest.mark.parametrize("n2", [324, 396])
@both_paths
def test_warps_of_a_block_have_columns_of_their_own_where_blocks_are_many(memory_efficient, n2, monkeypatch):
    """A warp for each 32 columns: three of four warps in four blocks, and all of four in four blocks."""
    monkeypatch.setattr(beside, "MOST_BLOCKS", 4)
    in_half_vectors(monkeypatch)
    case, step = random_case(9, n2, BFLOAT16), step_of("backward", "pipelined")
    examine_backward(case, None, step, memory_efficient, watched)


@both_paths
def test_many_short_rows_a_block_are_right_and_nothing_is_found(memory_efficient, monkeypatch):
    """So many row groups per block that all threads add up their sums."""
    few_stay(monkeypatch, 2)
    layout = PipelineLayout(ThreadMap(8, 1, 4, False), 8, 1, 2, 0, 2, 2)
    lay_out(layout, monkeypatch)
    case = random_case(70, 28, BFLOAT16)
    with using("simulator"):
        examine_backward(case, None, step_of("backward", "pipelined"), memory_efficient, watched)


@both_paths
def test_few_rows_of_clusters_are_right_and_nothing_is_found(memory_efficient, monkeypatch):
    """Clusters of two blocks take rows, and other clusters columns."""
    layout = PipelineLayout(ThreadMap(32, 1, 4, False), 2, 2, 3, 1, 2, 2)
    lay_out(layout, monkeypatch)
    case, step = random_case(3, 204, BFLOAT16), step_of("backward", "pipelined")
    with using("simulator"):
        examine_backward(case, None, step, memory_efficient, watched)
        few = results(case, step, memory_efficient)[0]
    devices.many_rows(monkeypatch)
    with using("simulator"):
        assert results(case, step, memory_efficient)[0] == few, "other blocks for the columns change grad_input"


@both_paths
def test_rows_without_blocks_for_the_columns_are_right_and_nothing_is_found(memory_efficient, monkeypatch):
    """Three blocks of four rows, whose partial sums a second kernel adds up."""
    devices.many_rows(monkeypatch)
    case = random_case(9, 388, np.float32)
    with using("simulator"):
        examine_backward(case, None, step_of("backward", "pipelined"), memory_efficient, watched)


@pytest.mark.skipif(not use_gpu(), reason="a GPU compiles a kernel for few rows, and another one for many")
@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
@pytest.mark.parametrize("n2", [768, 4096, 8192])
@pytest.mark.parametrize("dtype", [BFLOAT16, np.float32])
@both_paths
def test_a_row_has_the_same_gradient_in_every_batch_on_a_gpu(n2, dtype, rms, memory_efficient):
    case, step = random_case(200, n2, dtype, rms), step_of("backward", "pipelined")
    output, mean, invvar = statistics(case)
    saved = output if memory_efficient else case.x
    want = backward(case, step, saved, mean, invvar, memory_efficient)[0]
    for n1 in (1, 2, 3, 8, 9, 16, 17, 64, 65):
        few = replace(case, x=case.x[:n1], grad_output=case.grad_output[:n1])
        center = None if rms else mean[:n1]
        got = backward(few, step, saved[:n1], center, invvar[:n1], memory_efficient)[0]
        assert bits(got) == bits(want[:n1]), n1


@pytest.mark.parametrize("offset", [0, 1, 2])
@pytest.mark.parametrize("parameters", [BFLOAT16, np.float32])
def test_whole_vectors_of_eight_are_right(parameters, offset):
    """Whose parameters lie in halves in shared memory, and in global memory so many elements behind 16 bytes."""
    case = random_case(3, 512, BFLOAT16, parameters=parameters)
    case = replace(case, weight=shifted(case.weight, offset), bias=shifted(case.bias, offset))
    for memory_efficient in (False, True):
        examine_backward(case, None, step_of("backward", "pipelined"), memory_efficient)


@backward_steps
@pytest.mark.parametrize("number", [2, 17])
def test_sums_of_several_blocks_are_right(step, number, monkeypatch):
    few_stay(monkeypatch, number)
    case = random_case(140 if number > 2 else 35, 392, BFLOAT16)
    with using("simulator"):
        for memory_efficient in (False, True) if number == 2 else (False,):  # they are added up in the same way
            examine_backward(case, None, step, memory_efficient)


def watched(case, step, saved=None, mean=None, invvar=None, memory_efficient=None, kept=None) -> tuple:
    """Run a step's kernels as `forward` or `backward` does, but under watch, with scratch memory without contents."""
    memory = Memory()
    launch = launcher(memory)
    n1, n2 = case.x.shape
    eps, dtype = np.float32(case.eps), case.grad_output.dtype
    if step in FORWARD:
        results = memory.empty((n1, n2), dtype), *(memory.empty(n1, np.float32) for _ in range(2))
        step.run(launch, memory, ForwardProblem(case.x, case.weight, case.bias, eps, *results))
    else:
        results = memory.empty((n1, n2), case.x.dtype), *(memory.empty(n2, dtype) for _ in range(2))
        step.run(launch, memory, BackwardProblem(
            case.grad_output, saved, None if memory_efficient else mean, invvar, case.weight, case.bias, eps, False,
            memory_efficient, *results,
        ))  # fmt: skip
    assert not memory.empties, "a result was not computed"
    return results


def sanitized(case, step, memory_efficient) -> None:
    """Run a step's kernels under watch; what they compute is not looked at."""
    mean, invvar = np.zeros(len(case.x), np.float32), np.ones(len(case.x), np.float32)
    watched(case, step, case.x, mean, invvar, memory_efficient)


@backward_steps
@both_paths
@pytest.mark.parametrize(
    ("n1", "n2", "dtype"), [TURNS[-2], (5, WITHOUT_PREFETCH, np.float32)], ids=["prefetch", "no prefetch"]
)
def test_nothing_is_found_in_many_rows_per_block(step, n1, n2, dtype, memory_efficient, monkeypatch):
    few_stay(monkeypatch)
    no_prefetch_at(n2, monkeypatch)
    sanitized(random_case(n1, n2, dtype), step, memory_efficient)


@forward_steps
@pytest.mark.parametrize(("n2", "dtype"), [(1040, BFLOAT16), (1023, np.float32)], ids=str)
def test_nothing_is_found_in_rows_of_several_warps(step, n2, dtype):
    sanitized(random_case(3, n2, dtype), step, False)


def slices(thread_map, monkeypatch, blocks=2):
    """Let rows of float32 be dealt to so many slices each in the forward."""
    monkeypatch.setattr(forward_layouts, "rows_for", lambda *args: None)
    monkeypatch.setattr(
        forward_layouts,
        "slices_for",
        lambda *args: Chosen(forward_layouts.ClusterLayout(thread_map, blocks, 4), "a test"),
    )


def in_smaller_batches(case, rows):
    """Hold the first so many of its rows to the bits that they have among all; return the results of all."""
    step = step_of("forward", "clusters")
    want = forward(case, step)
    for n1 in rows:
        got = forward(replace(case, x=case.x[:n1]), step)
        assert [bits(array) for array in got] == [bits(None if array is None else array[:n1]) for array in want]
    return want


def built_plans(monkeypatch):
    """The layouts of the forward's kernels, a list that grows as they are built."""
    built, build = [], step_7_clusters.build

    def remembered(dtype, slices):
        if not built or built[-1] is not slices:  # the same one is built for the question how many fit, and to run
            built.append(slices)
        return build(dtype, slices)

    monkeypatch.setattr(step_7_clusters, "build", remembered)
    return built


@pytest.mark.skipif(use_gpu(), reason="for the simulator, which has no time for long rows; a GPU has the next test")
@pytest.mark.parametrize(("n2", "rms"), [(1748, False), (2048, True)], ids=["ragged-layer", "whole-rms"])
def test_a_row_has_the_same_bits_however_many_blocks_share_it(n2, rms, monkeypatch):
    slices(ThreadMap(256, 1, 4, n2 == 2048), monkeypatch)
    devices.plan_for(monkeypatch, multiprocessors=10)
    built = built_plans(monkeypatch)
    in_smaller_batches(random_case(6, n2, np.float32, rms), (4, 2, 1))
    assert [plan.spread for plan in built] == [1, 1, 2, 4]


@pytest.mark.skipif(use_gpu(), reason="for the simulator, which has no time for long rows; a GPU has the next test")
@pytest.mark.parametrize("resident", [66, 5, 1])
@pytest.mark.parametrize(("n2", "rms"), [(1748, False), (2048, True)], ids=["ragged-layer", "whole-rms"])
def test_a_row_has_the_same_bits_however_many_clusters_read_it(n2, rms, resident, monkeypatch):
    slices(ThreadMap(64, 4, 4, n2 == 2048), monkeypatch)
    devices.plan_for(monkeypatch, multiprocessors=20)
    devices.find_room_for(monkeypatch, resident)
    built = built_plans(monkeypatch)
    in_smaller_batches(random_case(6, n2, np.float32, rms), (4, 2, 1))
    assert [plan.readers for plan in built] == [1, 2, 4, 4]


@pytest.mark.skipif(not use_gpu(), reason="200 long rows take the simulator minutes")
@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
@pytest.mark.parametrize("n2", [32776, 50257, 65536, 262144])
@pytest.mark.parametrize("dtype", [BFLOAT16, np.float32])
def test_a_long_row_has_the_same_bits_in_every_batch_on_a_gpu(n2, dtype, rms):
    in_smaller_batches(random_case(200, n2, dtype, rms), (1, 2, 3, 16, 57))


@pytest.mark.skipif(not use_gpu(), reason="long rows take the simulator minutes")
@both_paths
@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
@pytest.mark.parametrize("n2", [16384, 65536, 262144])
@pytest.mark.parametrize("dtype", [BFLOAT16, np.float32])
def test_a_long_row_has_the_same_gradient_in_every_batch_on_a_gpu(n2, dtype, rms, memory_efficient):
    case, step = random_case(60, n2, dtype, rms), step_of("backward", "pipelined")
    output, mean, invvar = statistics(case)
    saved = output if memory_efficient else case.x
    want = backward(case, step, saved, mean, invvar, memory_efficient)[0]
    for n1 in (1, 2, 3, 16):
        few = replace(case, x=case.x[:n1], grad_output=case.grad_output[:n1])
        got = backward(few, step, saved[:n1], None if rms else mean[:n1], invvar[:n1], memory_efficient)[0]
        assert bits(got) == bits(want[:n1]), n1


HELD, READ_AGAIN = (
    (ThreadMap(64, 2, 2, False), 2),
    (ThreadMap(64, 3, 4, False), 1),
)  # by registers, a row's vectors; or not
WHOLE = ThreadMap(64, 2, 2, True), 2
MANY_WARPS = ThreadMap(192, 1, 1, False), 11  # more than `grouped.FEW` of them, of which some have no values
FORMS = {  # slices, multiprocessors, shared memory; are parameters there, do registers hold a row, by how many blocks
    "parameters in global memory": (HELD, 1, 2**12, (False, False, 1)),
    "held": (HELD, 1, 2**17, (True, True, 1)),
    "few rows": (HELD, 132, 2**17, (True, True, 2)),
    "read again": (READ_AGAIN, 1, 2**17, (True, False, 1)),
    "many warps": (MANY_WARPS, 1, 3500, (False, False, 1)),
    "one row each": (HELD, 1, 2**17, (True, True, 1)),  # where there is one parameter
    "one row each, read again": (WHOLE, 1, 2**17, (True, True, 1)),  # there, too; and held where there are two
}


@pytest.mark.parametrize("form", FORMS)
def test_many_rows_a_cluster_are_right_and_nothing_is_found(form, monkeypatch):
    """Rows of up to 512 columns, whose turns the simulator has the time for: a first, a last and one between."""
    few_stay(monkeypatch)
    monkeypatch.setattr(forward_layouts, "SMALLEST_BLOCK", 32)
    monkeypatch.setattr(forward_layouts, "WORDS_OF_TWO_BLOCKS", 8)
    (thread_map, blocks), processors, room, (shared, kept, spread) = FORMS[form]
    slices(thread_map, monkeypatch, blocks)
    devices.plan_for(monkeypatch, multiprocessors=processors, shared_bytes=room)
    one_row, n1, n2 = form.startswith("one row each"), 3, 512 if thread_map.whole else 452
    monkeypatch.setattr(forward_layouts, "ONE_ROW_FROM", n1 * blocks if one_row else n1 * blocks + 1)
    if thread_map.whole:
        monkeypatch.setattr(forward_layouts, "FEW_THREADS", 64)
        monkeypatch.setattr(forward_layouts, "WORDS_OF_THREE_BLOCKS", 2)
    built = built_plans(monkeypatch)
    case, step = random_case(n1, n2, np.float32), step_of("forward", "clusters")
    with using("simulator"):
        for one in (case, replace(case, weight=None), replace(case, bias=None)):
            ordered = one is case or (shared and spread == 1)  # where it matters in what order which parameters come
            examine_forward(one, step, watched if ordered else forward)
    assert {(plan.parameter_bytes > 0, plan.spread) for plan in built} == {(shared, spread)}
    assert {plan.kept for plan in built if not plan.one_row} == {kept}
    each = {(plan.parameters, plan.kept) for plan in built if plan.one_row}
    assert each == ({(1, not thread_map.whole)} if one_row else set())


@both_paths
def test_many_rows_a_cluster_are_right_backward_and_nothing_is_found(memory_efficient, monkeypatch):
    few_stay(monkeypatch)
    layout = PipelineLayout(ThreadMap(64, 1, 4, False), 2, 2, 3, 1, 4, 4)
    monkeypatch.setattr(step_3_pipelined, "layout_for", lambda *args: Chosen(layout, "a test"))
    case, step = random_case(5, 452, np.float32), step_of("backward", "pipelined")
    with using("simulator"):
        examine_backward(case, None, step, memory_efficient, watched)


@both_paths
def test_rows_in_a_pipeline_of_one_stage_are_right_and_nothing_is_found(memory_efficient, monkeypatch):
    """The layout of the longest rows, with slices of 256 columns in place of 16384."""
    layout = PipelineLayout(ThreadMap(64, 1, 4, False), 1, 2, 1, 0, 4, 4)
    monkeypatch.setattr(step_3_pipelined, "layout_for", lambda *args: Chosen(layout, "a test"))
    few_stay(monkeypatch)
    case = random_case(3, 452, np.float32)
    with using("simulator"):
        examine_backward(case, None, step_of("backward", "pipelined"), memory_efficient, watched)
