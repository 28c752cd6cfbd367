"""Let the threads of a cluster, or of a team of warps, meet; reach into the shared memory of other blocks.

All blocks of a cluster run in one chunk, and their shared arrays lie side by side, so another block's element is so
many arrays further on. The functions are those of machine/clusters.py and machine/teams.py. Whatever these refuse, and
an arrival or a wait to which only some threads of a cluster come, is left to the scheduler.
"""

from typing import Any

import numpy as np

from normlab.sim.machine import clusters, teams
from normlab.sim.machine.scheduler import TURN
from normlab.sim.machine.threads import WARP_SIZE
from normlab.sim.protocols import CLUSTER_PASSES
from normlab.sim.vectorised.accesses import load, place_of
from normlab.sim.vectorised.accesses import store as store_at
from normlab.sim.vectorised.calls import register_lanes
from normlab.sim.vectorised.frames import Frame
from normlab.sim.vectorised.memory import Array
from normlab.sim.vectorised.refusal import NotVectorisedError
from normlab.sim.vectorised.twins import numbers_of
from normlab.sim.vectorised.values import Mixed


def rank(frame: Frame) -> Any:
    """Return the number of each lane's block in its cluster."""
    return frame.lanes.special("clusterrank")


def arrive(frame: Frame) -> None:
    """Let the lanes arrive at their clusters' barriers."""
    machine, ids = frame.lanes.machine, frame.lanes.ids
    _whole_clusters(frame)
    if machine.arrived is None:
        machine.arrived = np.zeros(machine.size, np.bool_)
    if machine.arrived[ids].any():
        raise NotVectorisedError("threads arrive at a cluster's barrier a second time")
    machine.arrived[ids] = True
    if machine.remote is not None:
        # A block that these lanes have reached into waits for this arrival before it ends: the accesses are safe.
        machine.remote[ids] = False


def arrive_shared(frame: Frame) -> None:
    """Let the lanes arrive, if none has stored into another block."""
    if frame.lanes.machine.stored_remotely:
        raise NotVectorisedError("cluster_arrive_shared comes after a store to another block")
    arrive(frame)


def wait(frame: Frame) -> None:
    """Let the lanes wait at their clusters' barriers, at which all have arrived."""
    machine, ids = frame.lanes.machine, frame.lanes.ids
    _whole_clusters(frame)
    if machine.arrived is None or not machine.arrived[ids].all():
        raise NotVectorisedError("threads wait at a cluster's barrier at which they have not arrived")
    # A thread that gives way may come to its wait when the others have met without it.
    if machine.launch.watch is not None and machine.atomics >= TURN:
        raise NotVectorisedError("so many atomic operations make the scheduler's threads take turns")
    # Before the lanes' pass changes: the observer notes in which one they have come.
    machine.launch.tell("cluster_wait", frame)
    # The blocks may have run different numbers of passes. All go on in the next multiple of CLUSTER_PASSES.
    machine.rounds.barrier(ids, machine.block_of[ids] // machine.launch.cluster, CLUSTER_PASSES)
    machine.meet("cluster", ids)
    machine.arrived[ids], machine.waited[ids] = False, True


def sync(frame: Frame) -> None:
    """Let the lanes arrive and wait."""
    arrive(frame)
    wait(frame)


def load_from(frame: Frame, array: Any, index: Any, owner: Any) -> Any:
    """Return `array[index]` of the copy of a shared array that block `owner` of each lane's cluster has."""
    return load(frame, array, _place_in(frame, array, index, owner, "ld"))


def store_to(frame: Frame, array: Any, index: Any, value: Any, owner: Any) -> None:
    """Do `array[index] = value` on the copy of a shared array that block `owner` of each lane's cluster has."""
    frame.lanes.machine.stored_remotely = True
    store_at(frame, array, _place_in(frame, array, index, owner, "st"), value)


def _place_in(frame: Frame, array: Any, index: Any, owner: Any, operation: str) -> Any:
    """Return the places of elements in the memory of other blocks, and note that the lanes reach there."""
    machine = frame.lanes.machine
    if type(array) is not Array or array.store.space != "shared" or type(index) is Mixed:
        raise NotVectorisedError("of an access to something other than another block's shared memory")
    # If the lane ends before its next arrival, the other block may have ended even earlier: `Machine.returned` gives
    # up.
    if machine.remote is None:
        machine.remote = np.zeros(machine.size, np.bool_)
    machine.remote[frame.lanes.ids] = True
    other = numbers_of(owner, frame.width, np.dtype(np.int64))
    if other.min() < 0 or other.max() >= machine.launch.cluster:
        raise NotVectorisedError("there is no such block in the cluster")
    # No block waits for another one to begin, until all have met at the cluster's barrier once.
    if machine.launch.proof is not None and not machine.waited[frame.lanes.ids].all():
        raise NotVectorisedError("of an access to a block that may not have begun")
    blocks = machine.block_of[frame.lanes.ids].astype(np.int64)
    # Chunks hold whole clusters, so a block's rank is its number in the chunk modulo the cluster's size.
    first = blocks - blocks % machine.launch.cluster
    # A block without live threads has ended, and its shared memory with it.
    if not np.bincount(machine.block_of[machine.alive], minlength=machine.blocks)[first + other].all():
        raise NotVectorisedError("of an access to a block that has ended")
    # Counted from the beginning of a block's own array, because the beginning is another block's.
    place = place_of(frame, array, index, based=False)
    if array.seen is not None:
        machine.launch.tell("reached", frame, array, place, other, operation)
    return place + (first + other) * array.base[1]


def team_sync(frame: Frame, number: Any, threads: Any) -> None:
    """Let the lanes meet at their blocks' barriers `number`, to each of which `threads` of them come."""
    machine, ids = frame.lanes.machine, frame.lanes.ids
    sizes, barriers = (numbers_of(one, len(ids), np.dtype(np.int32)) for one in (threads, number))
    if barriers.min() < 1 or barriers.max() > teams.LAST or (sizes % WARP_SIZE).any():
        raise NotVectorisedError("there is no such barrier, or no such team")
    # A number for each barrier of each block of the chunk: barriers go from 0 to LAST.
    team = machine.block_of[ids] * (teams.LAST + 1) + barriers
    _, first, places, counts = np.unique(team, return_index=True, return_inverse=True, return_counts=True)
    if (counts[places] != sizes).any():
        raise NotVectorisedError("only some threads of a team come to its barrier together")
    # bar.sync counts warps: a GPU would count a part of a warp as 32 threads.
    if len(ids) != WARP_SIZE * len(np.unique(machine.warps[ids])):
        raise NotVectorisedError("only some threads of a warp come to a team's barrier")
    if machine.team_of is None:
        machine.team_of = np.full(machine.size, -1, np.int32)
    known = machine.team_of[ids]
    machine.team_of[ids] = team
    # Until the block's barrier a lane is in one team, and a team has the same lanes: the logs have one owner for each
    # lane (Accesses.meet).
    others = (known >= 0) & (known != team) | (known != known[first][places])
    if others.any() or np.isin(machine.team_of, team).sum() != len(ids):
        raise NotVectorisedError("of threads, or a number, of several teams between two barriers of a block")
    machine.launch.tell("team_sync", frame, team)
    machine.rounds.barrier(ids, team)
    machine.meet("team", ids)


def _whole_clusters(frame: Frame) -> None:
    """Raise NotVectorisedError unless all live threads of the clusters are here."""
    machine = frame.lanes.machine
    cluster_of = machine.block_of // machine.launch.cluster
    machine.all_of(cluster_of, frame.lanes, "only some threads of a cluster come to its barrier together")


register_lanes(clusters.cluster_rank, rank)
register_lanes(clusters.cluster_sync, sync)
register_lanes(clusters.cluster_arrive, arrive)
register_lanes(clusters.cluster_arrive_shared, arrive_shared)
register_lanes(clusters.cluster_wait, wait)
register_lanes(clusters.load_from_block, load_from)
register_lanes(clusters.store_to_block, store_to)
register_lanes(teams.team_sync, team_sync)
