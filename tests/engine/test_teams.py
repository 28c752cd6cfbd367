"""A barrier for a team of a block's threads: the PTX, what does not compile, the same results on a GPU as simulated."""

import re

import needs
import numpy as np
import pytest
from numba import cuda, float32
from numba.core.errors import TypingError

from normlab.engine import compile_ptx, gpu_available, launch, resources, team_sync
from normlab.engine.compile.offline import compile_cubin
from normlab.engine.compile.signatures import kinds_of_types

TEAMS = 5
TYPES = (np.float32, 2), (np.float32, 2), np.int64


@cuda.jit
def of_own_length(x, out, threads):
    """Each team adds up as many rows as its number says, every element at the mirrored place."""
    tile = cuda.shared.array((TEAMS, 64), float32)
    thread, team = cuda.threadIdx.x, cuda.threadIdx.y
    row = cuda.blockIdx.x * TEAMS + team
    total = float32(0)
    for turn in range(1 + 7 * team):
        tile[team, thread] = x[row, thread] + turn
        team_sync(team + 1, threads)
        total += tile[team, 63 - thread]
        team_sync(team + 1, 64)
    out[row, thread] = total


def turns_of_each_team(blocks):
    x = np.random.default_rng(0).integers(0, 9, (blocks * TEAMS, 64)).astype(np.float32)
    out = np.zeros_like(x)
    launch(of_own_length, blocks, (64, TEAMS), x, out, 64)
    turns = 1 + 7 * np.tile(np.arange(TEAMS), blocks)[:, None]
    np.testing.assert_array_equal(out, turns * x[:, ::-1] + turns * (turns - 1) // 2)


def test_teams_take_as_many_turns_as_they_like():
    turns_of_each_team(2)


@pytest.mark.skipif(not gpu_available(), reason="needs a GPU")
def test_many_blocks_of_teams_at_once_on_a_gpu():
    turns_of_each_team(4999)


@cuda.jit
def twice(x, out, threads):
    tile = cuda.shared.array((4, 64), float32)
    thread, team = cuda.threadIdx.x, cuda.threadIdx.y
    tile[team, thread] = x[team, thread]
    team_sync(team + 1, threads)
    value = tile[team, 63 - thread]
    team_sync(15, 256)
    tile[0, 0] = value


@cuda.jit
def by_literals(x, out, threads):
    tile = cuda.shared.array(64, float32)
    tile[cuda.threadIdx.x] = x[0, cuda.threadIdx.x]
    team_sync(2, 64)
    out[0, cuda.threadIdx.x] = tile[63 - cuda.threadIdx.x]


@needs.compiler
def test_the_ptx_is_one_barrier_with_both_operands_between_the_accesses():
    ptx = compile_ptx(twice, TYPES)
    kinds = "barrier.sync", "st.shared", "ld.shared"
    found = [next(kind for kind in kinds if kind in line) for line in ptx.splitlines() if any(k in line for k in kinds)]
    assert found == ["st.shared", "barrier.sync", "ld.shared", "barrier.sync", "st.shared"]
    (number, threads), (last, all_threads) = re.findall(r"^\s*barrier\.sync (%r\d+), (%r\d+);$", ptx, re.MULTILINE)
    (team,) = re.findall(r"mov\.u32\s+(%r\d+), %tid\.y;", ptx)
    assert re.search(rf"add\.s32\s+{number}, {team}, 1;", ptx)
    assert re.search(rf"ld\.param\.u32\s+{threads}, ", ptx)
    assert re.search(rf"mov\.u32\s+{last}, 15;", ptx)
    assert re.search(rf"mov\.u32\s+{all_threads}, 256;", ptx)
    assert "bar.sync" not in ptx


@needs.compiler
@pytest.mark.parametrize("cc", [(8, 0), (9, 0)])
def test_the_assembler_takes_the_ptx_without_spills(cc):
    taken = resources(of_own_length, TYPES, cc)
    assert (taken.local_bytes, taken.spill_stores) == (0, 0)


@needs.compiler
@pytest.mark.parametrize(("kernel", "barriers"), [(twice, 16), (by_literals, 3)])
def test_a_number_of_run_time_takes_all_barriers_of_a_block(kernel, barriers):
    assert f"used {barriers} barriers" in compile_cubin(kernel, kinds_of_types(TYPES), (9, 0)).log


@cuda.jit
def by_a_float(x, out, threads):
    team_sync(1, x[0, 0])


@needs.compiler
def test_a_float_is_refused():
    with pytest.raises(TypingError, match="team_sync"):
        compile_ptx(by_a_float, TYPES)
