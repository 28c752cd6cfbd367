"""Predict how long a plan takes, from what the plan says and the facts of the GPU: the cost model.

    time = launch + start + |memory, waiting, work| + sums

    start    latencies until the first results: a block's life, and for a backward its sums of columns
    memory   the bytes that must move / the bandwidth that a long copy reaches
    waiting  (rounds - 1) lives. A life of a block is a latency, and an exchange per pass, also where one barrier serves
             two passes. By Little's law a GPU with B bytes in flight, each for one life, reads B per life:
             rounds = bytes to read / bytes in flight
    work     instructions, as time of a multiprocessor; of narrow vectors there are more
    sums     the kernels after the first: a launch, and the partial sums that they add up

`|a, b, c|` is nearly the largest of the three: they overlap, except where two of them are alike. `FITTED` was fitted to
measurements by tests/hardware/cost.py; docs/speed/model.md says how well it predicts, and where it is wrong.
"""

from math import ceil, prod
from typing import Any, NamedTuple

from normlab.kernels.plan import Device, Plan
from normlab.kernels.problem import BackwardProblem
from normlab.stages.vector import ThreadMap

SHARPNESS = 4  # of the sum of what overlaps: two equal parts take 1.19 times as long as one
TAIL = 4  # rounds below which a last round that is not full takes as long as a full one: of more, blocks have drifted
# Per thread, beside the elements that it holds: within a quarter of what the compiler takes, except in a forward that
# holds its parameters, too (`forward.early`), which takes up to 1.6 times as many.
BASE_REGISTERS = 24


class Constants(NamedTuple):
    """Hold what is fitted.

    Attributes:
        launch: µs of an empty kernel between two events.
        latency: µs from a load to its value while the memory is busy. An exchange takes half of it within a block, all
            of it within a cluster; a second kernel begins after two of them.
        attained: fraction of the data sheet's bandwidth that a long copy reaches.
        work: ns per element and pass on one multiprocessor.
        access: how many passes' work on an element an access to memory is.
        sums: how many times longer partial sums take than their bytes at the data sheet's bandwidth.
    """

    launch: float
    latency: float
    attained: float
    work: float
    access: float
    sums: float


FITTED = Constants(launch=2.99, latency=0.991, attained=0.884, work=0.0146, access=11.7, sums=10.6)
HALF, MOST = 1.1, 1.3  # factors within which half and nine of ten are of the drawn plans that were not fitted to


class Cost(NamedTuple):
    """What a plan takes, in µs, and why.

    Attributes:
        launch, start, memory, work, sums: as in the module's formula.
        life: of a block.
        rounds: how many times all resident blocks read what they have in flight; at least 1.
        in_flight: bytes per multiprocessor; None: the plan does not say, so the time is the least that it can be.
        needed: bytes in flight per multiprocessor that keep the memory busy.
        copy: of a copy that moves the least bytes that the problem needs.
    """

    launch: float
    start: float
    memory: float
    work: float
    sums: float
    life: float
    rounds: float
    in_flight: float | None
    needed: float
    copy: float

    @property
    def whole_rounds(self) -> float:
        """Return the rounds; of fewer than TAIL the last one counts as a whole one, however full it is."""
        return ceil(self.rounds - 1e-9) if self.rounds < TAIL else self.rounds

    @property
    def waiting(self) -> float:
        """Return the µs of all rounds but the first."""
        return (self.whole_rounds - 1) * self.life

    @property
    def microseconds(self) -> float:
        """Return the predicted time."""
        overlapping = sum(part**SHARPNESS for part in (self.memory, self.waiting, self.work))
        return self.launch + self.start + overlapping ** (1 / SHARPNESS) + self.sums

    @property
    def of_copy(self) -> float:
        """Return the predicted speed as a fraction of a copy's."""
        return self.copy / self.microseconds

    def as_dict(self) -> dict[str, Any]:
        """Return everything as numbers and text."""
        names = "microseconds", "of_copy", "bound_by", "waiting"
        return {**{name: getattr(self, name) for name in names}, **self._asdict()}

    @property
    def bound_by(self) -> str:
        """Return what takes longest: "launch", "memory", "bytes in flight", "instructions" or "sums"."""
        parts = {
            "memory": self.memory,
            "bytes in flight": self.waiting,
            "instructions": self.work,
            "launch": self.launch + self.start,
            "sums": self.sums,
        }
        return max(parts, key=lambda name: parts[name])


def predict(
    plan: Plan, operands: Any, device: Device, blocks: int | None = None, constants: Constants = FITTED
) -> Cost | None:
    """Return what a norm's plan takes; None for a GPU whose bandwidth is unknown.

    operands: what was planned for. blocks: how many a multiprocessor holds of the compiled kernel; None: estimated.
    """
    if device.bandwidth is None:
        return None
    work, elements, processors = plan.work[0], prod(operands.shape), device.multiprocessors
    attained = constants.attained * device.bandwidth / 1e6  # bytes per µs
    backward = isinstance(operands, BackwardProblem)
    # A LayerNorm's squares need its mean first, and a backward's gradients the row's sums; an RMSNorm's output needs
    # one sum.
    passes = 2 if backward or operands.mean is not None else 1
    statistics = [array for array in (operands.mean, operands.invvar) if array is not None]
    reading = plan.reads * traffic(operands, operands.reading)
    memory = (reading + traffic(operands, operands.writing) + sum(map(size_of, statistics))) / attained
    vectors = _vectors_of(plan)
    warps = vectors.warps if isinstance(vectors, ThreadMap) else 1
    exchange = constants.latency * (1 if work.cluster > 1 else 0.5 if warps > 1 else 0)
    # From a block's first load to its last sum: the load's latency, and an exchange between its warps per pass.
    life = constants.latency + passes * exchange
    rounds, busy, in_flight = 1.0, 0.0, None
    if vectors is not None:
        in_registers = work.threads * vectors.elements * reading / elements
        # a persistent block waits for what its shared memory holds, another one for what its threads hold
        held = min(reading / work.blocks, max(in_registers, work.shared_bytes))
        places = getattr(plan.layout, "alignments", 1) > 1 or getattr(plan.layout, "anywhere", False)
        between = places or getattr(plan.layout, "shifted", None) is not None
        if blocks is None:
            registers = 0 if work.shared_bytes > in_registers else BASE_REGISTERS + vectors.elements * (1 + between / 2)
            blocks = _resident(plan, device, registers)
        in_flight = held * min(work.blocks, blocks * processors) / processors
        # Little's law: what the GPU has on its way arrives once per life, so reading everything takes so many lives.
        rounds = max(1.0, reading / (in_flight * processors))
        accesses = 1 / vectors.width + between / 2  # of an element; between vectors it costs as much as in one of two
        busy = constants.work / 1e3 * (passes + constants.access * accesses) * elements
        # A grid of fewer blocks than multiprocessors leaves the others idle.
        busy /= min(work.blocks, processors)
    sums = constants.sums * plan.scratch_bytes / device.bandwidth * 1e6
    # Beside the bytes of the partial sums: a second kernel begins two latencies after the first has ended.
    if len(plan.work) > 1:
        sums += 2 * constants.latency
    return Cost(
        constants.launch,
        start=life + constants.latency * backward,
        memory=memory,
        work=busy,
        sums=sums,
        life=life,
        rounds=rounds,
        in_flight=in_flight,
        needed=reading / memory * life / processors,
        copy=constants.launch + constants.latency + moved(operands, 1) / attained,
    )


def _vectors_of(plan: Plan) -> Any:
    """Return the thread map, layout or option that has `elements` per thread and a `width`; None: the plan has none."""
    found = (getattr(plan.layout, "thread_map", None), plan.layout, *plan.work[0].options)
    return next((one for one in found if hasattr(one, "elements")), None)


def _resident(plan: Plan, device: Device, registers: float) -> int:
    """Return how many blocks a multiprocessor holds; registers: per thread, 0 if they do not limit it."""
    work = plan.work[0]
    room = device.resident(work.threads, work.shared_bytes, 1) // device.multiprocessors
    # the compiler keeps to as many registers as leave room for so many blocks
    least = getattr(plan.layout, "resident", 1)
    return max(1, min(room, max(least, int(device.registers / registers / work.threads)))) if registers else room


def size_of(array: Any) -> int:
    """Return the bytes of an array."""
    return prod(array.shape) * array.dtype.itemsize


def traffic(operands: Any, arrays: Any) -> int:
    """Return the bytes of matrices that are read or written once."""
    # rows that lie apart are a part of the memory that they lie in
    apart = getattr(operands, "row_map", None) is not None
    return sum(prod(operands.shape) * one.dtype.itemsize if apart else size_of(one) for one in arrays)


def moved(operands: Any, reads: int) -> int:
    """Return the bytes of reading a problem's input matrices `reads` times, and writing its results once."""
    return reads * traffic(operands, operands.reading) + traffic(operands, operands.writing)
