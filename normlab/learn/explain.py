"""Which kernel runs my norm, and why that plan? `explain` answers without a GPU, from the plan that a launch follows.

>>> print(explain("forward", norm="rms", dtype="bfloat16", n1=32768, n2=4096).plan.step)
one_barrier
"""

import inspect
import json
from dataclasses import dataclass
from functools import cached_property
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from normlab import engine
from normlab.host.checks import step_of
from normlab.kernels import LADDERS, Device, Plan, Problem
from normlab.kernels.cost import Cost, moved, predict
from normlab.kernels.family.passes import ImageProblem
from normlab.kernels.plan import DEVICES, Refusal, View, Work
from normlab.kernels.problem import one_of
from normlab.kernels.sgemm.product import ProductProblem
from normlab.learn.asked import refuse, step_with
from normlab.learn.sections import (
    byte_lines,
    device_line,
    launch_lines,
    memory_lines,
    predicted_lines,
    problem_lines,
    register_lines,
    runner_up_lines,
    times,
    why_lines,
)
from normlab.learn.speed import measured_lines

HERE = "here"  # the GPU of this machine, or where there is none an H200, which is what the simulator stands for


def explain(
    ladder: str = "forward",
    *,
    norm: str = "layer",
    dtype: str = "float32",
    n1: int | None = None,
    n2: int | None = None,
    parameters: str | None = None,
    weight: bool = True,
    bias: bool | None = None,
    saved: str = "input",
    m: int | None = None,
    n: int | None = None,
    k: int | None = None,
    shape: tuple[int, ...] | None = None,
    groups: int = 1,
    channels_last: bool = False,
    alignment: int = 256,
    residual: bool = False,
    gate: str | None = None,
    heads: tuple[int, int] | None = None,
    samples: int | None = None,
    offset: float = 0.0,
    device: str | Device = HERE,
    step: str | None = None,
    compiled: bool = False,
) -> "Explanation":
    """Say which kernel a step launches for a problem, on which grid, and why. No GPU is needed.

    Args:
        ladder: "forward", "backward", "sgemm" or "family".
        norm, dtype, n1, n2, parameters, weight, bias, saved: the norm's problem, as `kernels.Problem`; n1 is 4096 rows
            and n2 is 4096 columns where they are left out.
        m, n, k: of sgemm, (M, K) times (K, N); 4096 each where they are left out.
        shape, groups, channels_last: of the family, an image (N, C, *spatial), (32, 64, 56, 56) where it is left out.
        alignment: bytes that all addresses are multiples of.
        residual, gate, heads, samples, offset: of forward and backward: explain a norm of x + residual
            (`normlab.add_rms_norm_forward` and so on), with a gate, of heads that lie apart, or modulated per sample,
            as `kernels.Problem` has them.
        device: a short name, such as "h100"; the facts of any GPU; or "here": this machine's GPU, an H200 if there is
            none.
        step: a step of the ladder by name, such as "group_backward" of the family; None: the best one, or "batch" of
            the family.
        compiled: compile the kernel to say its registers and its occupancy, which takes seconds.

    Raises:
        ValueError: no such ladder, step, norm, dtype or device, or a size below 1.
    """
    one_of("ladder", ladder, LADDERS)
    extras: dict[str, Any] = {"residual": residual or None, "gate": gate, "heads": heads, "samples": samples}
    asked = {name: value for name, value in (extras | {"offset": offset or None}).items() if value is not None}
    if ladder == "family" and step is None:
        step = "batch"
    chosen: Any = step_with(asked, ladder, step) if asked else step_of(ladder, step)
    problem: Any
    if ladder != "family":
        refuse(f"{ladder} ladder", shape=shape, groups=groups, channels_last=channels_last)
    if ladder in ("family", "sgemm"):
        refuse(f"{ladder} ladder", n1=n1, n2=n2, norm=norm, parameters=parameters, bias=bias, saved=saved)
    if ladder != "sgemm":
        refuse(f"{ladder} ladder", m=m, n=n, k=k)
    if ladder == "family":
        image = (32, 64, 56, 56) if shape is None else tuple(shape)
        problem = ImageProblem(image, dtype, groups, channels_last, weight, alignment=alignment)
        if not chosen.name.startswith("group"):
            refuse(f"step {chosen.name!r} of the family", groups=groups)
    elif ladder == "sgemm":
        refuse("sgemm ladder", weight=weight)
        rows, columns, depth = (4096 if size is None else size for size in (m, n, k))
        problem = ProductProblem(rows, columns, depth, alignment=alignment)
        if dtype != "float32":
            raise ValueError(f"dtype must be float32, the one of the sgemm ladder, got {dtype!r}")
    else:
        rows, columns = (4096 if size is None else size for size in (n1, n2))
        problem = Problem(ladder, norm, rows, columns, dtype, parameters, weight, bias, saved, alignment, **asked)
    facts = device_of(device)
    if heads is not None and chosen.plan(problem, facts) is None:
        raise ValueError("no kernel takes these heads where they lie: they are copied first, to rows without heads")
    return Explanation(ladder, chosen, problem, facts, device if isinstance(device, str) else "", compiled)


def device_of(device: str | Device) -> Device:
    """Return the facts of the GPU with a short name, or of this machine's; return given facts unchanged."""
    if isinstance(device, Device):
        return device
    one_of("device", device, (HERE, *DEVICES))
    if device != HERE:
        return Device.named(device)
    return Device.of(np.empty(0, np.float32)) if engine.use_gpu() else Device.named("h200")


@dataclass(frozen=True)
class Explanation:
    """What a step does for a problem. In a notebook it shows itself; `str` is its text, `as_dict` what programs read.

    Attributes:
        ladder: "forward", "backward", "sgemm" or "family".
        step: the step that was asked.
        problem: what was asked of it.
        device: the facts of the GPU.
        name: the short name that the caller gave for the GPU; "" if the caller gave its facts.
        compiled: True to compile the kernel for its registers and occupancy.
    """

    ladder: str
    step: Any
    problem: Any  # a Problem, a ProductProblem or an ImageProblem
    device: Device
    name: str
    compiled: bool

    @cached_property
    def answers(self) -> list[Plan | Refusal]:
        """Return the plan or the refusal of each kernel that the step may launch, in the order that they are asked."""
        return self.step.answers(self.problem, self.device)

    @cached_property
    def plan(self) -> Plan:
        """Return the plan that a launch follows."""
        return self._plans[0]

    @cached_property
    def operands(self) -> Any:
        """Return the operands that were planned for: arrays without memory."""
        return self.step.described(self.problem)

    @property
    def has_extras(self) -> bool:
        """Return True if the problem is a norm with a residual, a gate or the like, which is no step of a ladder."""
        return bool(getattr(self.problem, "extras", ()))

    @property
    def _plans(self) -> list[Plan]:
        return [answer for answer in self.answers if isinstance(answer, Plan)]

    @property
    def runner_up(self) -> Plan | None:
        """Return the plan of another step that would be next, if there is one."""
        return next((other for other in self._plans if other.step != self.plan.step), None)

    @property
    def refusals(self) -> list[str]:
        """Return the reasons of those that refused before the chosen plan."""
        before = self.answers[: self.answers.index(self.plan)]
        return [answer.reason for answer in before if isinstance(answer, Refusal)]

    @cached_property
    def work(self) -> Work:
        """Return the kernel that has most of the work: the first."""
        return self.plan.work[0]

    @property
    def where(self) -> str:
        """Return the file and line of the kernel."""
        return place_of(self.work.kernel)

    @cached_property
    def bytes_moved(self) -> int:
        """Return the bytes that the plan moves between memory and multiprocessors, matrices alone."""
        return moved(self.operands, self.plan.reads)

    @property
    def least_bytes(self) -> int:
        """Return the bytes of reading what comes in once and writing what goes out once, matrices alone."""
        return moved(self.operands, 1)

    def cost_of(self, plan: Plan) -> Cost | None:
        """Return what the cost model says of a plan for a norm without extras; None for others."""
        if self.has_extras or not isinstance(self.problem, Problem):
            return None
        blocks = self.occupancy.blocks if plan is self.plan and self.occupancy else None
        return predict(plan, self.operands, self.device, blocks)

    @cached_property
    def predicted(self) -> Cost | None:
        """Return what the cost model says of the plan."""
        return self.cost_of(self.plan)

    @cached_property
    def resources(self) -> Any:
        """Return what the assembler says of the kernel; None: not asked for, or a platform without numba-cuda.

        Raises:
            CompilerMissingError: NVIDIA's libraries are not installed (`engine.compile.offline`).
        """
        if not self.compiled or find_spec("numba_cuda") is None:
            return None
        return engine.resources(self.work.kernel, types_of(self.work, self.plan, self.operands))

    @property
    def occupancy(self) -> Any:
        """Return the blocks that a multiprocessor holds of the compiled kernel; None: unknown."""
        found = self.resources
        if found is None or self.device.capability not in engine.MULTIPROCESSORS:
            return None
        shared = found.shared_bytes + self.work.shared_bytes
        return engine.occupancy(found.registers, shared, self.work.threads, self.device.capability)

    def facts(self) -> list[tuple[str, list[str]]]:
        """Return the sections of the text: (heading, lines)."""
        plan, work = self.plan, self.work
        named = plan.step == self.step.name or self.ladder == "family" or self.has_extras
        earlier = plan.step in (step.name for step in LADDERS[self.ladder])
        other = "an earlier step, whose kernel" if earlier else "a kernel beside the ladder's steps, which"
        own = "" if named else f", {other} {self.step.name} uses here"
        sections = [
            ("problem", [*problem_lines(self), device_line(self)]),
            ("step", [f"{plan.step}{own}", *(f"asked before, and refused: {reason}" for reason in self.refusals)]),
            ("kernel", [f"{work.kernel.py_func.__name__}  {self.where}"]),
            ("plan", [*launch_lines(plan), *getattr(plan.layout, "words", ()), *memory_lines(plan)]),
            ("registers", register_lines(self)),
            ("bytes", byte_lines(self)),
            ("predicted", predicted_lines(self)),
            ("speed", [] if self.has_extras else measured_lines(self.problem, plan.step)),
            ("why", why_lines(plan)),
            ("runner-up", runner_up_lines(self)),
        ]
        return [(heading, lines) for heading, lines in sections if lines]

    def __str__(self) -> str:
        """Return the text of all sections."""
        return "\n".join(
            f"{heading if position == 0 else '':11}{line}"
            for heading, lines in self.facts()
            for position, line in enumerate(lines)
        )

    def as_dict(self) -> dict[str, Any]:
        """Return everything as numbers and text."""
        plan, runner_up = self.plan, self.runner_up
        return {
            "ladder": self.ladder,
            "asked": self.step.name,
            "problem": vars(self.problem),
            "device": vars(self.device),
            "step": plan.step,
            "kernels": [
                {
                    "name": work.kernel.py_func.__name__,
                    "where": place_of(work.kernel),
                    "grid": work.grid,
                    "block": work.block,
                    "cluster": work.cluster,
                    "shared_bytes": work.shared_bytes,
                }
                for work in plan.work
            ],
            "words": list(getattr(plan.layout, "words", ())),
            "scratch_bytes": plan.scratch_bytes,
            "chains": {"rows": plan.rows._asdict(), "columns": plan.columns and plan.columns._asdict()},
            "registers": self.resources and self.resources._asdict(),
            "occupancy": self.occupancy and self.occupancy._asdict(),
            "predicted": self.predicted and self.predicted.as_dict(),
            "bytes": self.bytes_moved,
            "least_bytes": self.least_bytes,
            "why": plan.why,
            "refusals": self.refusals,
            "runner_up": runner_up and {"step": runner_up.step, "why_not": self.why_not(runner_up)},
        }

    def as_json(self) -> str:
        """Return `as_dict` as JSON."""
        return json.dumps(self.as_dict(), indent=2)

    def why_not(self, other: Plan) -> str:
        """Return why another plan was not chosen, and how much longer the cost model says that it takes."""
        said = f"runs it, too, but is asked only where {self.plan.step} refuses"
        if other.reads > self.plan.reads:
            more = moved(self.operands, other.reads) / self.bytes_moved
            said = f"it reads {times(other.reads)}: {more:.2f} times the bytes"
        own, cost = self.predicted, self.cost_of(other)
        if own is None or cost is None:
            return said
        least = "at least " if cost.in_flight is None else ""
        ratio = cost.microseconds / own.microseconds
        return f"{said}; predicted: {least}{cost.microseconds:,.1f} us, {ratio:.2f} times as long"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left;vertical-align:top'>{escape(heading)}</th>"
            f"<td style='text-align:left'>{'<br>'.join(map(escape, lines))}</td></tr>"
            for heading, lines in self.facts()
        )
        return f"<table>{rows}</table>"


def place_of(kernel: Any) -> str:
    """Return "file:line" of a kernel; the path is relative if the file lies below the working directory."""
    function = inspect.unwrap(kernel.py_func)
    path = Path(function.__code__.co_filename)
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return f"{path}:{function.__code__.co_firstlineno}"


def types_of(work: Work, plan: Plan, operands: Any) -> tuple:
    """Return the types of a kernel's arguments as `engine.resources` takes them.

    An array is (scalar type, number of dimensions), a number its NumPy type, an absent argument None.
    """
    scratch = {one.name: one for one in plan.scratch}
    values = dict(plan.values)

    def kind(name: str | View | None) -> Any:
        if name in scratch:
            return scratch[name].dtype.type, len(scratch[name].shape)
        if isinstance(name, View):
            viewed = scratch.get(name.name) or getattr(operands, name.name)
            return viewed.dtype.type, len(name.shape)
        value = None if name is None else values[name] if name in values else getattr(operands, name)
        if value is None:
            return None
        return (value.dtype.type, len(value.shape)) if getattr(value, "shape", ()) else np.dtype(type(value)).type

    return tuple(map(kind, work.arguments))
