"""The clocks, held to what they stand for: reachability in the graph of everything that has happened.

Random programs of a few threads in three blocks, two of them a cluster, are run event by event, by the clocks and by a
reference that keeps, for every event, the set of all events before it.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from normlab.sim.sanitizing.clocks import (
    Access,
    BlockClock,
    Left,
    ThreadClock,
    before,
    fence,
    meet,
    pass_barrier,
    pass_grid_sync,
)
from normlab.sim.sanitizing.gathering import Gathering
from normlab.sim.sanitizing.shadow import KEPT, THIN, Region

BLOCKS, WARPS, LANES = 3, 2, 3
CLUSTER = 2  # blocks, the first ones
THREADS = BLOCKS * WARPS * LANES
CODE = (lambda: None).__code__


def at(thread, instruction):
    """The thread's access now."""
    return Access(thread.now(), CODE, instruction)


class Reference:
    """For every thread, the events before its next one; for its fences and for addresses, those that are passed on."""

    def __init__(self):
        self.known = [frozenset()] * THREADS
        self.fenced = [frozenset()] * THREADS
        self.fenced_for_block = [frozenset()] * THREADS
        self.left, self.left_for_block = {}, {}

    def join(self, threads):
        for table in (self.known, self.fenced, self.fenced_for_block):
            everything = frozenset().union(*(table[thread] for thread in threads))
            for thread in threads:
                table[thread] = everything

    def fence(self, thread, for_block_only):
        self.fenced_for_block[thread] = self.known[thread]
        if not for_block_only:
            self.fenced[thread] = self.known[thread]

    def atomic(self, thread, address):
        own = thread // (WARPS * LANES), address
        self.known[thread] |= self.left.get(address, frozenset()) | self.left_for_block.get(own, frozenset())
        self.left[address] = self.left.get(address, frozenset()) | self.fenced[thread]
        self.left_for_block[own] = self.left_for_block.get(own, frozenset()) | self.fenced_for_block[thread]


def warp_members(warp, lanes):
    return [warp * LANES + lane for lane in range(LANES) if lanes >> lane & 1]


events = st.one_of(
    st.tuples(st.just("access"), st.integers(0, THREADS - 1)),
    st.tuples(st.just("access"), st.integers(0, THREADS - 1)),
    st.tuples(st.just("fence"), st.integers(0, THREADS - 1), st.booleans()),
    st.tuples(st.just("atomic"), st.integers(0, THREADS - 1), st.integers(0, 1)),
    st.tuples(st.just("barrier"), st.integers(0, BLOCKS - 1)),
    st.tuples(st.just("cluster"), st.just(0)),
    st.tuples(st.just("meet"), st.integers(0, BLOCKS * WARPS - 1), st.integers(1, 2**LANES - 1)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(events, max_size=40))
def test_before_is_reachability(program):
    gathering = Gathering()
    blocks = [BlockClock((index, 0, 0), "the cluster" if index < CLUSTER else None) for index in range(BLOCKS)]
    clocks = [
        ThreadClock(blocks[i // (WARPS * LANES)], i // LANES % WARPS, i % LANES, (i, 0, 0)) for i in range(THREADS)
    ]
    reference = Reference()
    left = {}
    accesses = []  # (epoch, event) of all so far
    for number, (kind, who, *how) in enumerate(program):
        if kind == "access":
            now = clocks[who].now()
            for epoch, event in accesses:
                assert before(epoch, now) == (event in reference.known[who]), (number, event)
            accesses.append((now, number))
            reference.known[who] |= {number}
        elif kind == "fence":
            fence(clocks[who], for_block_only=how[0])
            reference.fence(who, how[0])
        elif kind == "atomic":
            here = left.setdefault(how[0], Left())
            here.take(clocks[who])
            here.leave(clocks[who])
            reference.atomic(who, how[0])
        elif kind == "barrier":
            pass_barrier(blocks[who])
            reference.join(range(who * WARPS * LANES, (who + 1) * WARPS * LANES))
        elif kind == "cluster":
            members = range(CLUSTER * WARPS * LANES)
            for take in (gathering.arrive, gathering.take):
                for member in members:
                    take(clocks[member])
                if take == gathering.arrive:
                    gathering.meet("the cluster")
            reference.join(members)
        else:
            members = warp_members(who, how[0])
            meet([clocks[member] for member in members])
            reference.join(members)


def two_blocks(lanes=1):
    blocks = [BlockClock((index, 0, 0)) for index in range(2)]
    return blocks, [ThreadClock(block, 0, lane, (lane, 0, 0)) for block in blocks for lane in range(lanes)]


def test_a_block_s_fence_passes_nothing_on_to_another_block():
    _, (mine, neighbour, theirs, _) = two_blocks(lanes=2)
    epoch, left = mine.now(), Left()
    fence(mine, for_block_only=True)
    left.leave(mine)
    left.take(neighbour)
    left.take(theirs)
    assert before(epoch, neighbour.now())
    assert not before(epoch, theirs.now())


def test_what_is_done_behind_the_fence_is_not_passed_on():
    _, (mine, theirs) = two_blocks()
    left = Left()
    fence(mine, for_block_only=False)
    epoch = mine.now()
    left.leave(mine)
    left.take(theirs)
    assert not before(epoch, theirs.now())


def test_a_third_thread_s_atomic_without_a_fence_does_not_break_the_chain():
    blocks, (mine, _) = two_blocks()
    epoch, left = mine.now(), Left()
    fence(mine, for_block_only=False)
    left.leave(mine)
    middle, last = (ThreadClock(BlockClock((index, 0, 0)), 0, 0, (0, 0, 0)) for index in (2, 3))
    left.take(middle)
    left.leave(middle)
    left.take(last)
    assert before(epoch, last.now())
    assert blocks[0].phase == 0


def test_a_grid_sync_lets_blocks_forget_and_start_in_a_new_phase():
    blocks, (mine, _) = two_blocks()
    pass_grid_sync(blocks)
    assert [block.phase for block in blocks] == [1, 1]
    assert mine.known.phases == {blocks[0]: 1}


def test_what_a_thread_knows_stays_small_however_many_have_passed_a_counter():
    blocks, counter = [BlockClock((index, 0, 0)) for index in range(50)], Left()
    threads = [ThreadClock(block, 0, lane, (lane, 0, 0)) for block in blocks for lane in range(8)]
    epochs = []
    for thread in threads * 2:
        epochs.append(thread.now())
        fence(thread, for_block_only=False)
        counter.take(thread)
        counter.leave(thread)
    last = threads[-1].now()
    assert all(before(epoch, last) for epoch in epochs)
    assert not before(threads[0].now(), last)
    assert max(len(table) for thread in threads for table in (*thread.known, *thread.fenced)) <= 2


@settings(max_examples=100, deadline=None)
@given(st.permutations(range(128)), st.integers(0, 127))
def test_readers_that_are_dropped_have_others_that_stand_for_them(order, writer):
    """128 threads of two blocks read one element at one line; a write by any of them meets a reader it races with."""
    blocks = [BlockClock((index, 0, 0)) for index in range(2)]
    threads = [ThreadClock(blocks[i // 64], i // 32 % 2, i % 32, (i % 64, 0, 0)) for i in range(128)]
    region = Region(0, 4)
    for i in order:
        assert region.read(0, at(threads[i], 0)) is None
    assert len(region.reads[0]) < 2 * THIN
    for block in blocks[writer // 64 :][
        :1
    ]:  # its own block has passed a barrier: only the other one's readers are left
        pass_barrier(block)
    found = region.write(0, at(threads[writer], 2))
    assert {access[0].thread.block for _, access in found} == {blocks[1 - writer // 64]}


def test_of_a_team_s_readers_some_are_kept_although_the_block_has_another_team():
    """However many read an element at one line, team by team: a write behind the first team's barrier meets others."""
    for count in range(129, 257):
        block = BlockClock((0, 0, 0))
        threads = [ThreadClock(block, i // 32, i % 32, (i, 0, 0)) for i in range(count)]
        for i, thread in enumerate(threads):
            thread.team = 1 + i // 128
        region = Region(0, 4)
        for thread in threads:
            region.read(0, at(thread, 0))
        meet(threads[:128])
        found = region.write(0, at(threads[0], 2))
        assert {access[0].thread.team for _, access in found} == {2}
        assert len(region.reads[0]) < 2 * THIN


def test_a_unit_keeps_few_accesses_however_many_threads_race_there():
    blocks = [BlockClock((index, 0, 0)) for index in range(8)]
    region = Region(0, 4)
    for block in blocks:
        for i in range(256):
            region.write(0, at(ThreadClock(block, i // 32, i % 32, (i, 0, 0)), 0))
    assert len(region.writes[0]) < 2 * THIN + KEPT**3


def test_a_region_whose_arrays_have_several_dtypes_works_in_their_common_unit():
    _, (mine, theirs) = two_blocks()
    region = Region(0, 8)
    assert list(region.units(8, 8)) == [8]
    region.write(8, at(mine, 0))
    assert list(region.units(12, 4)) == [12]
    assert [operation for operation, _ in region.read(12, at(theirs, 2))] == ["write"]
    assert region.read(16, at(theirs, 2)) is None
