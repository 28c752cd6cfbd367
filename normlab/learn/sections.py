"""The sections of an explanation as lines of text: the problem, the launches, bytes, registers, the reason.

`one` is an `explain.Explanation`, and `explain.Explanation.facts` puts the sections together.
"""

from typing import Any

from normlab.kernels import Plan, Problem
from normlab.kernels.cost import HALF, MOST
from normlab.kernels.family.passes import ImageProblem
from normlab.kernels.sgemm.product import ProductProblem
from normlab.kernels.words import counted


def times(reads: int) -> str:
    """Return how often matrices are read, in words."""
    return {1: "the matrices once", 2: "the matrices twice"}.get(reads, f"the matrices {counted(reads, 'time')}")


def problem_lines(one: Any) -> list[str]:
    """Return what was asked."""
    problem = one.problem
    if isinstance(problem, ProductProblem):
        return [f"sgemm, ({problem.m:,}, {problem.k:,}) times ({problem.k:,}, {problem.n:,}) float32"]
    if isinstance(problem, ImageProblem):
        groups = f", {counted(problem.groups, 'group')}" if one.step.norm == "group" else ""
        last = ", channels last" if problem.channels_last else ""
        image = " x ".join(f"{side:,}" for side in problem.shape)
        direction = "backward" if one.step.backward else "forward"
        return [f"{one.step.norm} norm {direction}, {image} {problem.dtype}{last}{groups}"]
    name = {"layer": "LayerNorm", "rms": "RMSNorm"}[problem.norm] + problem.extras
    parameters = [kind for kind, given in (("weight", problem.weight), ("bias", problem.has_bias)) if given]
    dtype = f" in {problem.parameters}" if problem.parameters else ""
    saved = f", {problem.saved} saved" if problem.direction == "backward" else ""
    shape = f"{problem.n1:,} row{'s' * (problem.n1 != 1)} of {problem.n2:,} column{'s' * (problem.n2 != 1)}"
    return [
        f"{name} {problem.direction}, {shape}, {problem.dtype}{saved}",
        f"{' and '.join(parameters)}{dtype}" if parameters else "no parameters",
    ]


def device_line(one: Any) -> str:
    """Return the GPU's facts."""
    device = one.device
    major, minor = device.capability
    return (
        f"{one.name or 'a GPU'}: {device.multiprocessors} multiprocessors of compute capability {major}.{minor}, "
        f"{device.shared_bytes:,} bytes of shared memory per block"
    )


def launch_lines(plan: Plan) -> list[str]:
    """Return each launch of a plan in words."""
    lines = []
    for work in plan.work:
        cluster = f", in clusters of {work.cluster}" if work.cluster > 1 else ""
        shared = f", {work.shared_bytes:,} bytes of dynamic shared memory" if work.shared_bytes else ""
        name = f"{work.kernel.py_func.__name__}: " if len(plan.work) > 1 else ""
        lines.append(f"{name}{counted(work.blocks, 'block')} of {counted(work.threads, 'thread')}{cluster}{shared}")
    return lines


def memory_lines(plan: Plan) -> list[str]:
    """Return a plan's scratch."""
    return [f"{plan.scratch_bytes:,} bytes of scratch"] if plan.scratch else []


def register_lines(one: Any) -> list[str]:
    """Return what the assembler says."""
    if not one.compiled:
        return ["not compiled: --compile or compiled=True asks the assembler"]
    found, occupancy = one.resources, one.occupancy
    if found is None:
        return ["unknown: numba-cuda, the compiler for GPUs, has no wheels for this platform"]
    line = f"{found.registers} per thread, {found.spill_stores + found.spill_loads} bytes of spills"
    if occupancy is None:
        return [line]
    said = f"{counted(occupancy.blocks, 'block')} per multiprocessor, {occupancy.fraction:.0%} of its warps"
    return [line, said]


def byte_lines(one: Any) -> list[str]:
    """Return the bytes, and the time that they take at least."""
    reads = f"reads {times(one.plan.reads)}"
    lines = [f"{one.bytes_moved:,} ({reads}); the least is {one.least_bytes:,}"]
    if one.device.bandwidth:
        seconds = one.least_bytes / one.device.bandwidth
        lines.append(f"the least takes {seconds * 1e6:,.1f} us at {one.device.bandwidth / 1e12:.2f} TB/s")
    return lines


def predicted_lines(one: Any) -> list[str]:
    """Return what the cost model says: the time, its parts, what bounds it, and how full the last round is."""
    cost = one.predicted
    if cost is None:
        # The model predicts plain norms only, and needs a bandwidth. The caller can give the bandwidth alone.
        known = one.device.bandwidth or one.has_extras or not isinstance(one.problem, Problem)
        return [] if known else ["unknown, because this GPU's bandwidth is unknown; --device h100 has one"]
    if cost.in_flight is None:
        return [f"at least {cost.microseconds:,.1f} us; the plan does not say how much its threads read at once"]
    lines = [
        f"{cost.microseconds:,.1f} us, {cost.of_copy:.2f} of a copy's speed; "
        f"of drawn plans half were within a factor of {HALF}, nine of ten within {MOST}",
        f"launch {cost.launch:.1f}, start {cost.start:.1f}, sums {cost.sums:.1f}; at the same time memory "
        f"{cost.memory:,.1f}, waiting {cost.waiting:,.1f}, work {cost.work:,.1f}",
        f"bound by {cost.bound_by}; {cost.in_flight / 1024:,.0f} KiB in flight per multiprocessor, "
        f"{cost.needed / 1024:,.0f} KiB are needed",
    ]
    last = cost.rounds - cost.whole_rounds + 1  # 1 also for many rounds: the model counts no last one then
    if last < 0.995:  # else the line would say 100 %
        lines.append(f"the last of {counted(int(cost.whole_rounds), 'round')} of blocks is {100 * last:.0f} % full")
    return lines


def why_lines(plan: Plan) -> list[str]:
    """Return the reason of a plan, and where its numbers come from."""
    if "of a copy" not in plan.why:
        return [plan.why]
    # Tables differ in which GPU they mean where a reason names none.
    measured = "measured beside each other when this plan was chosen, on an H200 or an H100 (its table says which)"
    return [plan.why, f"{measured}; the records are later"]


def runner_up_lines(one: Any) -> list[str]:
    """Return the plan that would be next."""
    other = one.runner_up
    return ["none: no other way of this step does it"] if other is None else [f"{other.step}: {one.why_not(other)}"]
