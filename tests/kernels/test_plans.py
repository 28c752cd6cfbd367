"""Every plan of the fast steps: how it maps threads, what it asks of a GPU, and what the assembler makes of its kernel.

Assembling takes a second or two a kernel, so that only a sample is assembled by default. All kernels of the widths in
WIDTHS, in all dtypes and affine forms: about 1600 of them,
`NORMLAB_ALL_PLANS=1 pytest -n 2 tests/kernels/test_plans.py`.
"""

import itertools
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import devices
import ml_dtypes
import numpy as np
import pytest
from devices import SHARED_BYTES
from machine_code import resources_in_float32

from normlab.engine import compile_ptx, occupancy
from normlab.kernels import LADDERS, Device, Problem
from normlab.kernels.backward import layouts, step_2_fused, step_3_pipelined
from normlab.kernels.backward.pipelined import beside
from normlab.kernels.backward.pipelined.columns import MANY_GROUPS, sums_apart
from normlab.kernels.backward.short_rows import plan as short_rows
from normlab.kernels.forward import layouts as forward_layouts
from normlab.kernels.forward import step_5_vectors, step_6_one_barrier, step_7_clusters
from normlab.kernels.forward.tables import TABLES
from normlab.kernels.plan import Work, exchanged_row_chains_of
from normlab.learn.explain import types_of
from normlab.stages.grouped import FEW, group_size
from normlab.stages.vector import ThreadMap

BFLOAT16 = ml_dtypes.bfloat16
CAPABILITIES = list(SHARED_BYTES)
BYTES = [(2, 2), (4, 4), (4, 2), (2, 4)]  # an element of the input, and of the output
# of the saved array, which is one of both, of grad_output and of grad_input
BYTES_BACKWARD = [(2, 2, 2), (4, 4, 4), (4, 2, 4), (2, 4, 2), (2, 2, 4), (4, 4, 2)]
RAGGED = [33, 1021, 8191, 20002, 24577, 32767, 32770, 65535, 65537, 131070, 131074, 262140]
WIDTHS = [64, 128, 256, 384, 768, 1024, 2048, 4096, 5120, 8192, 16384, 65536, 262144]
FORWARD = {step.name: step for step in LADDERS["forward"]}
BACKWARD = {step.name: step for step in LADDERS["backward"]}


def columns_to_try() -> list[int]:
    """Values of n2: small ones, those around every limit of every table, powers of two, odd ones, primes."""
    found = [layouts.table_for(*sizes, kind) for sizes in ((2, 2), (2, 4), (4, 4)) for kind in layouts.KINDS]
    rows = {row for table in found for row in table}
    columns = [row.columns_up_to for row in itertools.chain(rows, *TABLES.values())]
    columns += [row.columns_per_block * blocks for row in rows if row.columns_per_block for blocks in (1, 2, 8, 16)]
    limits = [one // full for one in columns for full in (4, 8)]  # vectors of 16 bytes
    limits += [vectors * blocks for vectors in (2048, 4096, 8192) for blocks in (1, 2, 8, 16)]
    around = {limit * width + step for limit in limits for width in (1, 2, 4, 8) for step in (-width, -1, 0, 1, width)}
    around |= {power + step for power in (2**k for k in range(5, 19)) for step in (-1, 0, 1, 2, 4, 8)}
    primes = {41, 97, 127, 769, 1021, 2053, 4093, 5119, 8191, 16381, 65521, 65537, 262139}
    return sorted(n2 for n2 in {*range(1, 41), *around, *primes, *WIDTHS, 768 * 5, 262144 + 8} if 0 < n2 <= 2**19)


ALL_COLUMNS = columns_to_try()


def vector_widths(n2: int, widest_bytes: int) -> list[int]:
    """The widths that some alignment leaves."""
    return [width for width in (1, 2, 4, 8) if n2 % width == 0 and width * widest_bytes <= 16]


@cache
def longest_chains(step, n2: int):
    """The longest chains along a row of all layouts that a step has: it looks for all of them, at each call."""
    return step.row_chains(n2)


class Mapped(NamedTuple):
    """A row of n2 dealt to the blocks of a cluster."""

    n2: int
    thread_map: ThreadMap
    blocks: int


def hold_thread_map(mapped: Mapped) -> None:
    """Every column of the row is some thread's, once, and a vector begins where it may."""
    n2, thread_map, blocks = mapped
    assert thread_map.threads % 32 == 0 or (32 % thread_map.threads == 0 and blocks == 1)
    assert n2 % thread_map.width == 0
    first = np.arange(blocks)[:, None] * thread_map.columns + np.arange(thread_map.threads) * thread_map.width
    starts = (first[..., None] + np.arange(thread_map.vectors) * thread_map.span).reshape(
        -1
    )  # blocks, threads, vectors
    if not thread_map.whole:
        starts = starts[starts < n2]
    covered = np.bincount((starts[:, None] + np.arange(thread_map.width)).reshape(-1), minlength=n2)
    assert len(covered) == n2, f"{mapped} goes past the row's end"
    assert (covered == 1).all(), f"{mapped} leaves columns out, or has them twice"


def hold_groups(mapped: Mapped) -> None:
    """The sizes of the warps' groups, as the kernel counts them, are those of the columns dealt to them."""
    n2, thread_map, blocks = mapped
    size = group_size(thread_map, blocks).py_func
    members = thread_map.warps * blocks
    sizes = [size(n2, member) for member in range(members)]
    assert sum(sizes) == n2, f"{mapped}: the warps' values are not all of the row's"
    stretch = thread_map.lanes * thread_map.width
    first = [
        member // thread_map.warps * thread_map.columns + member % thread_map.warps * stretch
        for member in range(members)
    ]
    columns = np.arange(thread_map.vectors) * thread_map.span
    for member in {0, members // 2, members - 1}:
        places = (first[member] + columns)[:, None] + np.arange(stretch)
        assert sizes[member] == np.count_nonzero(places < n2)


def hold_all(mapped: list[Mapped], groups: bool = False) -> None:
    assert mapped, "the planner refuses everything"
    for one in set(mapped):
        hold_thread_map(one)
        if groups:
            hold_groups(one)


@pytest.mark.parametrize("step", [step_5_vectors, step_2_fused], ids=["vectors", "fused"])
def test_deals_of_a_block_cover_every_column_once(step):
    found = []
    for n2 in ALL_COLUMNS:
        for width in vector_widths(n2, 2):
            thread_map = step.thread_map_for(n2, width)
            if thread_map is None:
                continue
            found.append(Mapped(n2, thread_map, 1))
            assert thread_map.threads <= step.MAX_THREADS
            assert thread_map.elements <= step.MAX_ELEMENTS
            chains = longest_chains(sys.modules[step.__name__].STEP, n2)
            assert chains.terms >= thread_map.elements
            assert chains.merges >= 5 + (thread_map.warps - 1).bit_length()
    hold_all(found)


def test_plans_of_one_barrier_cover_every_column_once_and_fit_a_block():
    found = []
    for n2, (itemsize, rms) in itertools.product(ALL_COLUMNS, TABLES):
        for width in vector_widths(n2, itemsize):
            chosen = forward_layouts.rows_for(n2, width, itemsize, rms)
            if chosen is None:
                continue
            plan = chosen.layout
            found.append(Mapped(n2, plan.thread_map, 1))
            threads = plan.thread_map.threads * plan.rows
            assert threads <= 1024
            assert threads % 32 == 0, "all lanes shuffle"
            assert plan.resident * threads <= 2048
            assert plan.thread_map.elements * threads <= 32 * 1024, "more than half of the registers are values"
            assert longest_chains(step_6_one_barrier.STEP, n2).terms >= plan.thread_map.elements
    hold_all(found, groups=True)


def exchange_bytes(layout):
    """The bytes of a block's exchange buffer, and of what it gathers of a long row's other blocks."""
    members = layout.thread_map.warps * layout.blocks
    return 4 * 2 * 2 * layout.thread_map.warps + 4 * 2 * (members if members > FEW else 0)


@pytest.mark.parametrize("capability", [*CAPABILITIES, (8, 6)], ids=str)
def test_plans_of_clusters_cover_every_column_once_and_fit_a_gpu(capability):
    found = []
    slices, room = 16 if capability >= (9, 0) else 1, SHARED_BYTES.get(capability, 99 * 1024)
    for n2, (itemsize, other) in itertools.product(ALL_COLUMNS, BYTES):
        for width in vector_widths(n2, max(itemsize, other)):
            chosen = forward_layouts.slices_for(n2, width, itemsize, devices.of(capability))
            vectors = 8192 if width >= 4 and 8192 * width * itemsize + forward_layouts.STATIC_BYTES <= room else 4096
            most = min(slices * vectors * width, forward_layouts.LONGEST)
            assert (chosen is None) == (width * itemsize < 4 or n2 > most)
            if chosen is None:
                continue
            plan = chosen.layout
            found.append(Mapped(n2, plan.thread_map, plan.blocks))
            less = plan.thread_map._replace(vectors=plan.thread_map.vectors - 1)
            assert plan.blocks * less.columns < n2 or less.threads > 512, "no thread has a vector too many"
            members, board = plan.thread_map.warps * plan.blocks, exchange_bytes(plan)
            assert board <= forward_layouts.STATIC_BYTES
            assert members <= FEW or 2 * members <= plan.thread_map.threads, "a word each"
            assert plan.thread_map.threads <= 1024
            assert plan.shared_bytes + board <= room
            assert plan.blocks <= slices
            assert width * itemsize in (4, 8, 16), "what an asynchronous copy moves"
            chains = longest_chains(step_7_clusters.STEP, n2)
            assert chains.terms >= plan.thread_map.elements + members // 32
    hold_all(found, groups=True)


@pytest.mark.parametrize("capability", [*CAPABILITIES, (8, 6)], ids=str)
def test_clusters_have_room_for_rows_that_begin_within_a_vector(capability):
    room = SHARED_BYTES.get(capability, 99 * 1024)
    for n2, (itemsize, other), rms in itertools.product(ALL_COLUMNS, BYTES, (False, True)):
        width = 16 // max(itemsize, other)
        chosen = forward_layouts.edges_for(n2, width, itemsize, devices.of(capability), rms)
        if chosen is None:
            assert n2 > forward_layouts.LONGEST or (capability < (9, 0) and n2 > 16384 - width)
            continue
        layout, places = chosen.layout, {row * n2 % width for row in range(width)}
        assert layout.anywhere
        assert layout.blocks * layout.thread_map.columns >= max(places) + n2
        assert not layout.thread_map.whole, "some vector may lie beside the row"
        assert layout.blocks <= (16 if capability >= (9, 0) else 1)
        assert exchange_bytes(layout) <= forward_layouts.STATIC_BYTES
        assert layout.shared_bytes + forward_layouts.STATIC_BYTES <= room
        members = layout.thread_map.warps * layout.blocks
        assert longest_chains(step_7_clusters.STEP, n2).terms >= layout.thread_map.elements + members // 32


@pytest.mark.parametrize("capability", [*CAPABILITIES, (8, 6)], ids=str)
def test_few_rows_are_spread_out_over_as_many_blocks_as_fit(capability):
    most = 16 if capability >= (9, 0) else 1
    found = {
        forward_layouts.slices_for(n2, width, itemsize, devices.of(capability))
        for n2, itemsize in itertools.product(ALL_COLUMNS, (2, 4))
        for width in vector_widths(n2, itemsize)
    }
    spreads, readers = set(), set()
    rows = (1, 2, 3, 7, 8, 16, 57, 115, 132, 200, 1000)
    plans = {chosen.layout for chosen in found - {None}}
    for plan, count, itemsize, processors, n1 in itertools.product(plans, (0, 1, 2), (2, 4), (1, 66, 132), rows):
        plan = plan._replace(parameters=count)
        spread = forward_layouts.spread_out(plan, n1, itemsize, devices.of(capability, processors))
        assert spread[:3] == plan[:3], "what a row's bits depend on"
        assert spread.cluster <= most
        assert spread.threads * spread.cluster == plan.threads * plan.blocks
        row, parameters = (plan.thread_map.columns * plan.blocks * size for size in (plan.itemsize, count * itemsize))
        at_a_time = SHARED_BYTES.get(capability, 99 * 1024) // (
            (row + parameters) // plan.blocks + forward_layouts.STATIC_BYTES
        )
        held = plan.thread_map.width * itemsize >= 4 and at_a_time >= 1
        assert spread.parameter_bytes == (itemsize if held else 0)
        blocks = n1 * spread.cluster * spread.readers
        assert spread.readers == 1 or (blocks <= 7 / 8 * processors and spread.readers <= plan.thread_map.vectors)
        if not held:
            assert spread == plan
            continue
        assert 2 * blocks > 7 / 8 * processors or 2 * spread.readers > plan.thread_map.vectors, (
            "no multiprocessor is left idle"
        )
        assert spread.shared_bytes * spread.cluster == row + parameters
        fits = plan.thread_map.threads <= 256 and count < 2  # more than two slices a multiprocessor
        assert spread.one_row == (fits and n1 * plan.blocks >= 16 * processors)
        assert spread.resident_slices * plan.thread_map.threads <= 1024, "registers"
        assert spread.words_per_thread <= 32 or not spread.kept
        assert n1 * spread.cluster <= processors or spread.spread == 1
        assert spread.threads >= 64
        assert 2 * n1 * spread.cluster > processors or 2 * spread.cluster > most or spread.threads == 64
        spreads.add(spread.spread)
        readers.add(spread.readers)
    assert spreads == ({1, 2, 4, 8} if most == 16 else {1})
    assert readers == {1, 2, 4, 8}


def test_many_rows_with_one_parameter_have_a_cluster_each():
    for dtype, many in ((np.float32, 264), (BFLOAT16, 528)):  # 16 slices a multiprocessor
        both = Form(dtype, dtype)
        one = both._replace(biased=False)
        for form, n1, each in ((one._replace(rms=True), many, True), (one, many - 1, False), (both, many, False)):
            (work, _), *others = launches(FORWARD["clusters"], n1, 65536, form)
            assert not others
            assert (work.grid == n1 * work.cluster) == each


def test_parameters_of_long_rows_lie_in_shared_memory_for_any_number_of_rows():
    """Of rows of up to 512 KB, with vectors of 16 bytes; two blocks a multiprocessor."""
    for n2, n1, (itemsize, other) in itertools.product((32776, 65536, 131072), (1, 57, 2048, 10**6), BYTES):
        plan = forward_layouts.slices_for(n2, 16 // max(itemsize, other), itemsize, devices.of((9, 0))).layout
        plan = forward_layouts.spread_out(plan, n1, other, devices.of((9, 0)))
        assert plan.parameter_bytes == other
        assert 2 * plan.spread * plan.shared_bytes <= 2 * 96 * 1024
        assert plan.kept, "registers have room for a thread's part"


@pytest.mark.parametrize("capability", [*CAPABILITIES, (8, 6)], ids=str)
def test_layouts_of_rows_that_begin_within_a_vector_have_room_for_every_alignment(capability):
    for n2, sizes in itertools.product(ALL_COLUMNS, BYTES_BACKWARD):
        full, chains = 16 // max(sizes), longest_chains(step_3_pipelined.STEP, n2)
        for kind in layouts.KINDS:
            alignments = layouts.alignments_for(n2, sizes, kind.biased, kind.memory_efficient)
            if alignments == 1:
                continue
            chosen = layouts.layout_for(n2, full, sizes, kind, devices.of(capability), alignments)
            if chosen is None:
                assert n2 > 2048, "only long rows need more shared memory than there is"
                continue
            layout, thread_map = chosen.layout, chosen.layout.thread_map
            starts = {row * n2 % full for row in range(full)}
            assert len(starts) == layout.alignments == alignments
            assert max(starts) + n2 <= layout.blocks * thread_map.columns
            assert not thread_map.whole
            assert layout.shared_bytes(kind.parameter_bytes) + layout.exchange_bytes <= SHARED_BYTES.get(
                capability, 99 * 1024
            )
            assert chains.terms >= exchanged_row_chains_of(layout.thread_map, layout.blocks).terms
            # the row groups' sums, and a line of the block's, leave the parameters as they are
            left = layout.rows if layout.rows >= MANY_GROUPS else layout.rows - 1
            assert left * sums_apart(layout) + thread_map.columns <= layout.parameters_at
            for resident in (1, 7, 15, 66, 132):  # as many for each alignment, or all of them share the alignments
                number = step_3_pipelined.clusters_for(layout, 10**6, resident)
                assert number == resident or (number % alignments == 0 and 7 * resident <= 8 * number <= 8 * resident)
                lines = step_3_pipelined.lines_of(layout, 10**6, number)
                assert lines == number + (alignments - 1) * (number % alignments > 0)


@pytest.mark.parametrize("capability", [*CAPABILITIES, (8, 6)], ids=str)
def test_layouts_of_the_pipeline_cover_every_column_once_and_fit_a_gpu(capability):
    asked = [
        (n2, width, sizes, kind.parameter_bytes, layouts.layout_for(n2, width, sizes, kind, devices.of(capability)))
        for n2, sizes in itertools.product(ALL_COLUMNS, BYTES_BACKWARD)
        for width, kind in itertools.product(vector_widths(n2, max(sizes)), layouts.KINDS)
    ]
    # Many kinds and sizes have the same layout.
    found = {(*how, chosen.layout) for *how, chosen in asked if chosen is not None}
    for n2, width, sizes, parameter_bytes, layout in found:
        assert layout.thread_map.width == width
        assert (layout.saved_bytes, layout.grad_bytes) == sizes[:2]
        assert layout.threads <= 1024
        assert layout.threads % 32 == 0, "all lanes shuffle"
        assert layout.thread_map.elements <= layouts.MAX_ELEMENTS
        assert layout.shared_bytes(parameter_bytes) + layout.exchange_bytes <= SHARED_BYTES.get(capability, 99 * 1024)
        assert layout.blocks <= (16 if capability >= (9, 0) else 1)
        assert layout.stages - 1 - layout.prefetch >= 0
        assert {width * size for size in sizes[:2]} <= {4, 8, 16}, "what an asynchronous copy moves"
        terms = layout.thread_map.elements + layout.thread_map.warps * layout.blocks // 32
        assert longest_chains(step_3_pipelined.STEP, n2).terms >= terms
        # stages and parameters begin where a vector of 16 bytes may
        assert layout.grads_at * layout.grad_bytes % 16 == 0
        assert layout.parameters_at * 4 % 16 == 0
        # the row groups' sums of the columns leave the parameters as they are
        assert (layout.rows - 1) * layout.thread_map.columns <= layout.parameters_at
    for (n2, layout), n1 in itertools.product({(n2, layout) for n2, *_, layout in found}, (1, 200, 1024)):
        few = step_3_pipelined.few_rows_layout(layout, n1)
        assert few.thread_map == layout.thread_map, "a row's bits"
        assert few.threads <= 1024
        assert few.threads % 32 == 0
        row_blocks, tiles_of = (one.py_func for one in beside.counters(few))
        for columns in (n2, 10**6):
            tiles = tiles_of(n1, columns)
            assert 1 <= tiles <= few.threads // 32
            taken = (beside.grid_of(few, n1, columns) - row_blocks(n1)) * tiles * beside.COLUMNS
            assert columns <= taken < columns + tiles * beside.COLUMNS * few.blocks
    hold_all([Mapped(n2, layout.thread_map, layout.blocks) for n2, *_, layout in found])


class Form(NamedTuple):
    """What a step is run for; t, v: dtypes of the input and of parameters and output."""

    t: Any
    v: Any
    rms: bool = False
    weighted: bool = True
    biased: bool = True
    memory_efficient: bool | str = False  # "exact": with the rows' sums that the exact mode corrects


class Launched(NamedTuple):
    """A kernel of a plan, and the types of its arguments."""

    work: Work
    types: tuple

    @property
    def name(self) -> str:
        return self.work.kernel.py_func.__name__

    @property
    def threads(self) -> int:
        return int(np.prod(self.work.block))


H200 = devices.of((9, 0))


def launches(step, n1: int, n2: int, form: Form, device: Device = H200, alignment: int = 256) -> list[Launched]:
    """What a step would launch on a device, on arrays of this alignment; nothing runs."""
    t, v, rms, weighted, biased, memory_efficient = form
    direction, norm = "forward" if step.name in FORWARD else "backward", "rms" if rms else "layer"
    dtypes, saved = (np.dtype(t).name, np.dtype(v).name), "output" if memory_efficient else "input"
    problem = Problem(direction, norm, n1, n2, *dtypes, weighted, biased, saved, alignment).described()
    if memory_efficient == "exact" and direction == "backward":
        problem = replace(problem, row_sums=problem.invvar._replace(shape=(3, n1)))
    plan = step.plan(problem, device)
    return [Launched(work, types_of(work, plan, problem)) for work in plan.work]


STEPS = [FORWARD[name] for name in ("vectors", "one_barrier", "clusters")]
STEPS += [BACKWARD[name] for name in ("fused", "pipelined")]
every_step = pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)


def mapped(one: Launched) -> tuple:
    """What a row's bits follow from; the register layout of few rows differs in other things (`test_invariance`)."""
    layout = next((option for option in one.work.options if isinstance(option, forward_layouts.RegisterLayout)), None)
    if layout is None:
        return one.work.kernel, one.types, one.work.block, one.work.how
    return one.types, layout.thread_map, layout.shifted


@every_step
@pytest.mark.parametrize("n2", [1, 33, 130, 1024, 5120, 65536, 262144])
def test_neither_kernel_nor_block_of_a_row_depends_on_the_number_of_rows(step, n2, monkeypatch):
    """Of a row's results, that is: the columns' sums, over other rows, are other sums.

    But for few rows, long ones forward and short ones backward, whose bits `test_invariance` and `test_short_rows`
    compare.
    """
    single = devices.of((9, 0), multiprocessors=1)
    monkeypatch.setattr(step_3_pipelined, "few", lambda *args: False)
    monkeypatch.setattr(short_rows, "shared_by_warps", lambda n1, layout, device: layout)
    for t, v in ((BFLOAT16, BFLOAT16), (np.float32, np.float16)):
        found = [
            [mapped(one) for one in launches(step, n1, n2, Form(t, v), single) if "final_sums" not in one.name]
            for n1 in (1, 3, 50)
        ]
        assert found[0]
        assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("n2", "most"), [(1024, 1024), (1001, 640), (4096, 1024), (16384, 256), (65536, 64), (50257, 41)]
)
def test_sums_of_few_rows_need_no_second_kernel(n2, most):
    half = Form(BFLOAT16, BFLOAT16)

    def found(n1, form=half, device=H200):
        return [one.name for one in launches(BACKWARD["pipelined"], n1, n2, form, device)]

    alone = ["backward_pipelined"]
    assert found(1) == found(most) == alone
    assert found(most + 1) != alone
    assert found(2000, half._replace(weighted=False, biased=False)) == alone, "no sums"
    if n2 < 16384:
        assert found(most, device=devices.of((8, 0))) == alone, "it takes no cluster"


@pytest.mark.parametrize(
    ("n2", "dtype", "threads"),  # of blocks that take 40, 200, 400 and 640 rows
    [
        (1024, BFLOAT16, (128, 256, 512, 512)),
        (2048, np.float32, (160, 320, 320, 640)),  # long rows, of 160 threads
        (1001, BFLOAT16, (256, 512, 512, 512)),  # loaded by elements where columns are added up
    ],
)
def test_blocks_of_few_rows_have_more_warps_for_more_rows(n2, dtype, threads):
    def first(n1):
        return launches(BACKWARD["pipelined"], n1, n2, Form(dtype, dtype))[0]

    assert tuple(first(n1).work.threads for n1 in (40, 200, 400, 640)) == threads


@pytest.mark.parametrize(
    ("n1", "n2", "form", "early", "rows"),
    [
        (1, 4096, Form(BFLOAT16, BFLOAT16), True, 1),
        (528, 4096, Form(BFLOAT16, BFLOAT16), True, 1),  # four blocks of 128 threads with 112 registers have room
        (529, 4096, Form(BFLOAT16, BFLOAT16), False, 1),
        (529, 4096, Form(BFLOAT16, BFLOAT16, weighted=False, biased=False), False, 1),
        (1, 8192, Form(BFLOAT16, BFLOAT16, rms=True, biased=False), True, 1),
        (100, 128, Form(BFLOAT16, BFLOAT16), True, 16),
        (132 * 32, 128, Form(BFLOAT16, BFLOAT16), True, 32),
        (132 * 128, 128, Form(BFLOAT16, BFLOAT16), True, 128),
        (132 * 128 + 1, 128, Form(BFLOAT16, BFLOAT16), False, 128),
        (900, 2409, Form(BFLOAT16, BFLOAT16, rms=True, biased=False), True, 2),  # 442 threads per multiprocessor
        (1600, 1501, Form(BFLOAT16, BFLOAT16, rms=True, biased=False), False, 2),  # 776
        (264, 2409, Form(np.float32, np.float32), False, 1),  # a block has one row
        (10**5, 4096, Form(np.float32, np.float32), True, 1),  # 16 elements per thread
        (10**6, 768, Form(BFLOAT16, BFLOAT16), False, 4),  # 24
        (10**6, 768, Form(BFLOAT16, BFLOAT16, rms=True, biased=False), True, 4),
        (10**6, 1024, Form(BFLOAT16, BFLOAT16, weighted=False, biased=False), False, 2),
    ],
)
def test_few_rows_have_all_multiprocessors_and_wait_for_memory_once(n1, n2, form, early, rows):
    (one,) = launches(FORWARD["one_barrier"], n1, n2, form)
    layout = one.work.options[1]
    assert (layout.early, layout.rows) == (early, rows)
    if n1 < 1000 and early:
        assert layout.resident == 1, "registers have room for the parameters"


@pytest.mark.parametrize(("n1", "early"), [(528, True), (529, False)])
def test_early_parameters_are_loaded_before_the_sums(n1, early):
    (one,) = launches(FORWARD["one_barrier"], n1, 4096, Form(BFLOAT16, BFLOAT16))
    ptx = compile_ptx(one.work.kernel, one.types, (9, 0))
    assert ".local" not in ptx
    loads, sums = [found.start() for found in re.finditer(r"ld\.global", ptx)], ptx.index("shfl.sync")
    assert all(load < sums for load in loads) == early


def test_parameters_of_many_rows_come_early_only_where_that_was_measured():
    """Neither beside a residual or a gate nor of samples."""
    assert forward_layouts.rows_for(1024, 4, 4, False).layout.early
    for what in ({"beside": True}, {"sampled": True}):
        assert not forward_layouts.rows_for(1024, 4, 4, False, **what).layout.early


def test_rows_of_which_a_multiprocessor_holds_one_block_have_blocks_for_the_columns_up_to_fewer_bytes():
    recomputed = Form(BFLOAT16, BFLOAT16, memory_efficient=True)
    for n1, n2, form, device, kernels in (
        (1, 262144, Form(np.float32, np.float32), H200, 1),
        (2, 262144, Form(np.float32, np.float32), H200, 2),  # more than 1.5 MiB
        (64, 32768, recomputed, H200, 1),
        (129, 32768, recomputed, H200, 2),  # more than 8 MiB
        (22, 91707, recomputed, H200, 1),
        (23, 91707, recomputed, H200, 2),  # odd rows, more than 4 MiB
        (600, 1919, Form(np.float32, np.float32, memory_efficient=True), devices.of((8, 6)), 2),  # too large a block
    ):
        found = launches(BACKWARD["pipelined"], n1, n2, form, device)
        assert len(found) == kernels, (n1, n2)
        assert found[0].work.shared_bytes <= device.shared_bytes


@pytest.mark.parametrize("step", LADDERS["forward"] + LADDERS["backward"], ids=lambda step: step.name)
def test_a_plan_s_own_chains_are_never_longer_than_the_longest_of_all_plans(step):
    """The bounds of a plan are then never wider than those that a caller without a plan gets."""
    direction = "forward" if step in LADDERS["forward"] else "backward"
    dtypes = [("float32", None), ("bfloat16", None), ("float32", "float16"), ("float64", None)]
    for n1, n2, (dtype, parameters) in itertools.product(
        (1, 20, 4096), [33, 333, 2047, 50257, *WIDTHS, 3_211_264], dtypes
    ):
        plan = step.plan(Problem(direction, "layer", n1, n2, dtype, parameters), H200)
        pairs = [(plan.rows, longest_chains(step, n2))]
        if direction == "backward":
            pairs.append((plan.columns, step.column_chains(n1, n2)))
        for own, longest in pairs:
            assert own.terms <= longest.terms, (n1, n2, dtype)
            assert own.merges <= longest.merges


FAST = {"vectors": "forward_vectors", "one_barrier": "forward_one_barrier", "clusters": "forward_clusters",
        "fused": "backward_fused", "pipelined": "backward_pipelined"}  # fmt: skip
# The least and the most columns, of vectors of 16 bytes, that a step's own kernel does.
OWN = {"vectors": (1, 32768), "one_barrier": (1, 16384), "clusters": (65536, 262144), "fused": (1, 8192),
       "pipelined": (128, 262144)}  # fmt: skip


@every_step
@pytest.mark.parametrize("dtype", [BFLOAT16, np.float16, np.float32])
def test_a_step_s_own_kernel_does_what_it_is_for(step, dtype):
    for n2 in OWN[step.name]:
        names = [one.name for one in launches(step, 2, n2, Form(dtype, dtype))]
        assert names[0] == FAST[step.name], n2


@every_step
def test_float64_goes_to_an_earlier_step(step):
    names = {one.name for one in launches(step, 2, 64, Form(np.float64, np.float64))}
    assert names
    assert not names & set(FAST.values())


@every_step
def test_an_offset_of_one_element_narrows_the_vectors(step):
    """The kernel is another, built for vectors of one element, or none at all where these are not enough."""
    for n2 in (1024, 65536):
        form = Form(np.float32, np.float32)
        aligned, shifted = (launches(step, 2, n2, form, alignment=alignment)[0] for alignment in (16, 4))
        assert aligned.name not in FAST.values() or aligned.work.kernel is not shifted.work.kernel


ROWS = (1, 2, 4, 16, 57, 200, 1000, 2000)


def sample() -> Iterator[tuple]:
    """(step, n2, form, capability, rows) of kernels that between them have every shape of block and every branch.

    Few long rows have kernels of their own forward, and few rows backward, where some cases stand for the others.
    """
    most = ROWS[-1:]
    wide, half = Form(np.float32, np.float32), Form(BFLOAT16, BFLOAT16)
    yield "vectors", 32768, wide, (9, 0), most
    yield "one_barrier", 8192, half, (8, 0), most
    yield "one_barrier", 16384, wide, (9, 0), most
    yield "one_barrier", 2048, half, (9, 0), most  # these two with no more registers than `resident` leaves them
    yield "one_barrier", 8192, half._replace(rms=True, biased=False), (9, 0), most
    yield "one_barrier", 32767, half._replace(rms=True, biased=False), (9, 0), most  # 32 vectors of one element
    yield "one_barrier", 2305, half, (9, 0), most  # odd rows; five vectors per thread
    yield "one_barrier", 513, wide, (9, 0), most  # the same; with the registers of 1,024 threads it spilled
    yield "one_barrier", 14340, half, (9, 0), most  # eight vectors of four elements
    yield "one_barrier", 2052, half, (9, 0), most  # six vectors of four; with the registers of 1,536 threads it spilled
    yield "one_barrier", 1024, wide, (9, 0), (100_000,)  # early parameters, with the registers of 1,536 threads
    yield "one_barrier", 16384, half, (9, 0), (1,)  # few rows' parameters, with all registers of 512 threads
    yield "one_barrier", 6059, half, (9, 0), (6,)  # few odd rows: with 64 registers it spilled
    yield "clusters", 50000, half._replace(rms=True, biased=False), (9, 0), most  # 56 elements per thread: not kept
    yield "clusters", 65536, half, (9, 0), (1,)
    yield "clusters", 65535, wide, (9, 0), most  # odd rows: one that registers hold, and two that they do not
    yield "clusters", 50257, half, (9, 0), most
    yield "clusters", 131071, half._replace(rms=True, biased=False), (9, 0), most
    yield "clusters", 65534, wide, (9, 0), most  # vectors of two
    yield "clusters", 98304, half._replace(v=np.float32), (9, 0), most  # the most registers of 256 threads
    yield "clusters", 200000, wide, (9, 0), (1, 200)  # parameters of few rows in shared memory, of others not
    yield "clusters", 262144, wide._replace(rms=True, biased=False), (9, 0), most  # with 40 registers a thread
    one = wide._replace(biased=False)  # parameter: a row for each cluster, three blocks a multiprocessor
    yield "clusters", 65536, one._replace(rms=True), (9, 0), (200, 2000)
    yield "clusters", 131072, one, (9, 0), most  # with all registers that those leave
    yield "clusters", 40000, half, (8, 0), most
    yield "fused", 4096, wide._replace(memory_efficient="exact"), (9, 0), most
    yield "pipelined", 520, half, (9, 0), most  # the fewest registers that two blocks leave
    yield "pipelined", 384, half, (9, 0), most  # two rows in a warp, 16 a block: the most sums to add up for a thread
    yield "pipelined", 768, half, (9, 0), most
    yield "pipelined", 333, half, (9, 0), (1, 2000)  # odd rows: with all registers that 512 threads have
    yield "pipelined", 2047, half._replace(memory_efficient="exact"), (8, 0), most
    yield "pipelined", 50257, half, (9, 0), most
    yield "pipelined", 5001, wide._replace(memory_efficient=True), (9, 0), most
    yield "pipelined", 5001, half, (9, 0), most  # three row groups, with all registers that they leave
    # with two vectors stored at once the first spilled, with the row group's index in a register the second
    yield "pipelined", 8192, Form(np.float16, np.float16, memory_efficient=True), (9, 0), most
    yield "pipelined", 31255, Form(np.float16, np.float16, memory_efficient="exact"), (9, 0), most
    # two of which others of their tables spilled, by the registers that their threads leave
    yield "pipelined", 7001, wide, (9, 0), most
    yield "pipelined", 5631, wide, (9, 0), (272,)  # laid out as aligned rows are, it spilled
    yield "pipelined", 5631, wide._replace(memory_efficient=True), (9, 0), (272,)
    yield "pipelined", 6145, Form(np.float16, np.float16, memory_efficient=True), (9, 0), most
    yield "pipelined", 150001, Form(np.float16, np.float16, memory_efficient=True), (9, 0), most
    yield "pipelined", 20001, half._replace(rms=True, biased=False, memory_efficient=True), (9, 0), most
    yield "pipelined", 5120, half._replace(memory_efficient="exact"), (9, 0), most
    yield "pipelined", 8192, wide._replace(memory_efficient=True), (9, 0), (2000,)
    yield "pipelined", 333, half._replace(memory_efficient="exact"), (9, 0), (200,)  # with fewer registers it spilled
    yield "pipelined", 4096, half, (9, 0), (200,)  # with four vectors at once it spilled
    yield "pipelined", 65536, half._replace(memory_efficient="exact"), (9, 0), (1,)
    # between powers of two, with five vectors per thread: with other rows, or all vectors at once, they spilled
    yield "pipelined", 20480, half._replace(memory_efficient="exact"), (9, 0), most
    yield "pipelined", 20480, Form(np.float16, np.float16, memory_efficient="exact"), (9, 0), most
    yield "pipelined", 163840, Form(np.float16, np.float16), (9, 0), most
    yield "pipelined", 262144, wide, (9, 0), (1,)


def everything() -> Iterator[tuple]:
    """At every number of rows: affine forms of bfloat16 and float32, usual ones of the others; ragged rows, too."""
    same = [(BFLOAT16, BFLOAT16), (np.float32, np.float32)]
    others = [(np.float16, np.float16), (np.float32, BFLOAT16), (BFLOAT16, np.float32)]
    for capability, step, n2, (t, v) in itertools.product([(9, 0), (8, 0)], STEPS, WIDTHS + RAGGED, same + others):
        forms = itertools.product(*[[False, True]] * 3, [False, True, "exact"])
        for rms, weighted, biased, path in forms:
            usual = weighted and biased != rms
            if (rms and biased) or (path and step.name in FORWARD) or (path == "exact" and not (weighted or biased)):
                continue
            if usual or (path != "exact" and (t, v) in same and capability == (9, 0)):
                yield step.name, n2, Form(t, v, rms, weighted, biased, path), capability, ROWS


FULL = bool(os.environ.get("NORMLAB_ALL_PLANS"))
ASSEMBLED: dict[tuple, Any] = {}  # what several widths have in common is assembled once


def named(case: tuple) -> str:
    name, n2, form, capability, _ = case
    flags = [flag for flag in ("rms", "weighted", "biased") if getattr(form, flag)]
    flags += [{True: "recompute", "exact": "exact"}[form.memory_efficient]] if form.memory_efficient else []
    return "-".join([name, str(n2), np.dtype(form.t).name, np.dtype(form.v).name, *flags, f"sm_{capability[0]}0"])


@pytest.mark.parametrize("case", list(everything() if FULL else sample()), ids=named)
def test_kernels_fit_their_registers_and_their_shared_memory(case):
    pytest.importorskip("numba_cuda", reason="kernels are assembled by numba-cuda, which has no wheels here")
    name, n2, form, capability, rows = case
    device = devices.of(capability)
    step = next(step for step in STEPS if step.name == name)
    for n1, one in ((some, one) for some in rows for one in launches(step, some, n2, form, device)):
        if one.name not in FAST.values():
            continue  # earlier steps have tests of their own
        kernel, shared_bytes, cluster = one.work.kernel, one.work.shared_bytes, one.work.cluster
        key = kernel, one.types, capability
        if key not in ASSEMBLED:
            ASSEMBLED[key] = resources_in_float32(kernel, one.types, capability)
        taken = ASSEMBLED[key]
        assert (taken.local_bytes, taken.spill_stores, taken.spill_loads) == (0, 0, 0), taken
        assert taken.registers * one.threads <= 65536
        assert -(-taken.registers // 8) * 8 * one.threads <= 65536, "registers are given out in eights a thread"
        assert taken.shared_bytes + shared_bytes <= SHARED_BYTES[capability]
        assert cluster == 1 or capability >= (9, 0)
        many = n1 * cluster > 132  # rows, of which registers keep no block out of shared memory
        if many and one.name == "forward_clusters":
            least, blocks = (
                occupancy(registers, taken.shared_bytes + shared_bytes, one.threads, capability).blocks
                for registers in (32, taken.registers)
            )
            assert blocks >= min(least, 3 if one.work.grid == n1 * cluster else 2)
