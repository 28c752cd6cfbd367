"""The tables' rows: in columns of full vectors; narrower vectors are laid out as longer rows of as many vectors."""

import itertools

import devices
import pytest

from normlab.kernels import LADDERS, Device, Problem, add_norm
from normlab.kernels.backward import first_tables
from normlab.kernels.backward import layouts as backward_layouts
from normlab.kernels.backward.between import between_for
from normlab.kernels.backward.first_tables import GATED, SUMMED, SUMMED_RECOMPUTED, edges_for
from normlab.kernels.backward.tables import table_for
from normlab.kernels.forward import layouts as forward_layouts
from normlab.kernels.forward.early import OWN_REGISTERS
from normlab.kernels.forward.tables import BESIDE, NARROW, NARROWER, SAMPLED, SLICES, TABLES
from normlab.stages.vector import map_threads

HALVES_AND_SINGLES = ((2, 2), (2, 4), (4, 4))
FORWARD = [*TABLES.values(), *NARROWER.values(), *BESIDE.values(), *SAMPLED.values()]


def test_every_row_has_a_reason():
    backward = (table_for(*sizes, kind) for sizes in HALVES_AND_SINGLES for kind in backward_layouts.KINDS)
    first = [GATED, first_tables.SAMPLED, SUMMED, SUMMED_RECOMPUTED]
    first += [edges_for(size, kind) for size in (2, 4) for kind in backward_layouts.KINDS]
    first += map(between_for, backward_layouts.KINDS)
    for row in itertools.chain(*FORWARD, *SLICES.values(), NARROW, *first, *backward):
        assert len(row.why) > 20
        assert row.vectors >= 1


@pytest.mark.parametrize("table", [SUMMED, SUMMED_RECOMPUTED], ids=["input", "output"])
@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
def test_norms_of_sums_are_laid_out_by_every_row_of_their_table(table, rms):
    """On an H100, at both ends of the row's range: its stages fit with both norms' parameters."""
    norm, saved = "rms" if rms else "layer", "output" if table is SUMMED_RECOMPUTED else "input"
    for row in table:
        for n2 in (row.columns_from + 7, row.columns_up_to):
            problem = Problem("backward", norm, 8192, n2, "bfloat16", saved=saved, residual=True)
            plan = add_norm.BACKWARD.plan(problem, Device.named("h100"))
            assert (plan.why, plan.layout.rows, plan.layout.stages) == (row.why, row.rows, row.stages), n2


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("saved", ["input", "output"])
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_odd_rows_are_laid_out_by_every_row_of_their_table(norm, saved, dtype):
    """On an H100, at the row's last column: their stages fit, or fewer of them without a prefetch."""
    step = next(step for step in LADDERS["backward"] if step.name == "pipelined")
    kind = next(
        kind
        for kind in backward_layouts.KINDS
        if kind.memory_efficient == (saved == "output") and kind.biased == (norm == "layer")
    )
    rows = edges_for(2 if dtype == "bfloat16" else 4, kind)
    for row in rows:
        last = row.columns_up_to - 15  # it touches 7 more
        if row.columns_up_to <= 384 or any(
            one.columns_from <= last + 7 <= one.columns_up_to for one in rows[: rows.index(row)]
        ):
            continue  # `short_rows` is asked first, or an earlier row of the table
        problem = Problem("backward", norm, 8192, last, dtype, saved=saved)
        plan = step.plan(problem, Device.named("h100"))
        assert row.why in plan.why
        found = plan.layout.rows, plan.layout.stages, plan.layout.prefetch
        assert found in ((row.rows, row.stages, row.prefetch), (1, 2, 0)), row


def whole_rows(kind):
    """Return the layout of rows of so many columns of 16 bits on an H200, as a function of the columns."""
    sizes, device = (2, 2, 2), Device.named("h200")
    return lambda n2: backward_layouts.layout_for(n2, 8, sizes, kind, device)


@pytest.mark.parametrize("kind", [one for one in backward_layouts.KINDS if one.narrow])
def test_rows_between_powers_of_two_are_laid_out_by_every_row_of_their_table(kind):
    """At both ends: their stages fit beside the parameters."""
    layout_of = whole_rows(kind)
    for row in between_for(kind):
        earlier = [one for one in between_for(kind)[: between_for(kind).index(row)] if one.why != row.why]
        for n2 in (row.columns_from + 7, row.columns_up_to):
            if not any(one.columns_from <= n2 <= one.columns_up_to for one in earlier):
                found = layout_of(n2)
                assert found.why == row.why, n2
                assert found.layout[1:2] + found.layout[3:5] == (row.rows, row.stages, row.prefetch), n2


@pytest.mark.parametrize("kind", [one for one in backward_layouts.KINDS if one.narrow])
def test_rows_longer_than_a_power_of_two_by_a_quarter_leave_no_thread_without_columns(kind):
    layout_of = whole_rows(kind)
    for n2 in (20480, 40960, 81920, 163840):
        layout = layout_of(n2).layout
        assert layout.blocks * layout.thread_map.columns == n2


def test_several_blocks_of_a_cluster_share_a_multiprocessor_s_registers():
    """As many as its shared memory holds, up to 512 threads, which have 128 registers each."""
    kinds = [one for one in backward_layouts.KINDS if one.narrow and one.weighted and one.biased]
    kind = next(one for one in kinds if not one.memory_efficient)
    for n2, blocks in ((20480, 6), (81920, 3), (163840, 1), (32768, 1)):
        layout = whole_rows(kind)(n2).layout
        assert layout.resident_in_clusters(kind.parameter_bytes) == blocks, n2
        assert blocks * layout.threads <= 512
        held = layout.shared_bytes(kind.parameter_bytes) + layout.exchange_bytes + 1024
        assert blocks * held <= 228 * 1024


def test_every_line_of_the_forward_s_tables_is_for_rows_longer_than_the_line_s_before():
    for table in FORWARD:
        ends = [row.columns_up_to for row in table]
        assert ends == sorted(set(ends))


@pytest.mark.parametrize(("table", "part"), [(TABLES, 1), (NARROWER, 2)], ids=["whole vectors", "half vectors"])
@pytest.mark.parametrize(("itemsize", "rms"), TABLES)
def test_forward_rows_hold_up_to_their_last_column(itemsize, rms, table, part):
    """In vectors of half the width, at half as many columns."""
    for row in table[itemsize, rms]:
        width = 16 // itemsize // part
        columns = row.columns_up_to // part
        found = [forward_layouts.rows_for(columns + more, width, itemsize, rms) for more in (0, width)]
        assert found[0].why == row.why
        assert found[1] is None or found[1].why != row.why


@pytest.mark.parametrize(
    ("n2", "itemsize", "rms", "vectors", "extras"),
    [
        (1024, 2, False, 2, {}), (1536, 2, False, 2, {}), (1528, 2, False, 3, {}), (1032, 2, False, 3, {}),
        (1032, 2, False, 2, {"beside": True}), (1024, 2, True, 4, {}),
        (1024, 4, False, 2, {}), (1016, 4, False, 4, {}), (1024, 4, True, 2, {}), (1016, 4, True, 4, {}),
    ],
)  # fmt: skip
def test_plain_rows_that_leave_threads_idle_with_two_vectors_each_are_laid_out_by_a_later_line(
    n2, itemsize, rms, vectors, extras
):
    layout = forward_layouts.rows_for(n2, 16 // itemsize, itemsize, rms, **extras).layout
    assert layout.thread_map.vectors == vectors


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("narrower", [2, 4])
def test_narrower_vectors_are_laid_out_as_rows_of_as_many_vectors(itemsize, narrower):
    full, device = 16 // itemsize, devices.of((9, 0))
    width = full // narrower
    for vectors, rms in itertools.product((1, 9, 64, 100, 257, 512, 1024), (False, True)):
        wide, narrow = (forward_layouts.rows_for(vectors * one, one, itemsize, rms) for one in (full, width))
        if vectors * full <= max((row.columns_up_to for row in NARROWER.get((itemsize, rms), ())), default=0):
            assert narrow.why in {row.why for row in NARROWER[itemsize, rms]}
            continue
        assert wide.layout._replace(thread_map=None) == narrow.layout._replace(thread_map=None)
        assert wide.layout.thread_map[:2] == narrow.layout.thread_map[:2]
        kind = next(kind for kind in backward_layouts.KINDS if not kind.memory_efficient and not kind.biased)
        sizes = (itemsize,) * 3
        wide, narrow = (backward_layouts.layout_for(vectors * one, one, sizes, kind, device) for one in (full, width))
        if narrow is not None:  # asynchronous copies are at least four bytes
            assert (wide.why, wide.layout.thread_map.threads) == (narrow.why, narrow.layout.thread_map.threads)


@pytest.mark.parametrize("rms", [False, True])
def test_rows_of_a_warp_leave_as_few_lanes_idle_as_five_vectors_a_lane_allow(rms):
    for n2 in range(8, 769, 8):
        layout = forward_layouts.rows_for(n2, 8, 2, rms).layout
        mapped = layout.thread_map
        half = map_threads(n2, 8, max(1, mapped.threads // 2))
        most = 5 if half.threads >= 4 else 4
        assert mapped.threads > 32 or half.columns >= mapped.columns or half.vectors > most
        assert layout.rows * mapped.threads >= 128


@pytest.mark.parametrize(
    ("n2", "width", "itemsize", "rms", "early"),
    [
        (4096, 4, 4, False, True), (4092, 4, 4, False, False),
        (1026, 2, 4, False, True), (1000, 2, 4, False, False),  # 513 and 500 of 576 vectors
        (1792, 8, 2, True, True), (1784, 8, 2, True, False),  # 224 and 223 of 256 vectors
        (72, 8, 2, True, True), (132, 4, 4, False, True),  # lanes of a warp that has several rows
        (136, 8, 2, True, True),  # with as many registers as any
    ],
)  # fmt: skip
def test_parameters_come_early_only_where_threads_have_columns(n2, width, itemsize, rms, early):
    """All of them in LayerNorm, whose two parameters take many registers, else seven of eight; lanes may have none."""
    layout = forward_layouts.rows_for(n2, width, itemsize, rms).layout
    assert layout.early is early
    threads = layout.thread_map.threads * layout.rows * layout.resident
    assert threads * (OWN_REGISTERS + layout.thread_map.elements) <= Device.named("h100").registers


def test_narrower_vectors_have_tables_of_their_own_in_plain_norms_alone():
    for (itemsize, rms), table in NARROWER.items():
        full = 16 // itemsize
        own = {row.why for row in table} - {row.why for row in TABLES[itemsize, rms]}
        plain = forward_layouts.rows_for(700 + full // 2, full // 2, itemsize, rms)
        assert plain.why in own
        whole = forward_layouts.rows_for(704, full, itemsize, rms)
        extras = [
            forward_layouts.rows_for(700 + full // 2, full // 2, itemsize, rms, **{what: True})
            for what in ("beside", "sampled")
        ]
        assert not own & {one.why for one in (whole, *extras)}
