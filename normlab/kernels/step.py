"""Define what every step of every ladder answers: its name, its summary, and its plan for a problem."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from normlab.kernels.plan import Chains, Device, PersistentPlan, Plan, Refusal

Way = Callable[[Any, Device], Plan | PersistentPlan | Refusal]


@dataclass(frozen=True)
class Rung:
    """Hold what all steps of all ladders have.

    Attributes:
        name: what `step=` of the host functions takes.
        summary: one line.
        ways: the planners of the kernels that may do a problem; the first that does not refuse it does it. The step's
            own is among them. The others are those of earlier steps, for what its own kernel does not do, and of
            kernels beside the steps, for rows that these do faster.
    """

    name: str
    summary: str
    ways: tuple[Way, ...]

    def described(self, problem: Any) -> Any:
        """Return the operands that a description stands for, without memory; operands as they are."""
        # Planners then see operands in either case, and need not know which of them have memory.
        return problem.described() if hasattr(problem, "described") else problem

    def answers(self, problem: Any, device: Device) -> list[Plan | Refusal]:
        """Return what each of the ways says of a problem, in their order."""
        operands = self.described(problem)
        # every way is asked, also after one has accepted: `explain` shows the runner-up
        found = [way(operands, device) for way in self.ways]
        return [answer.estimated(device) if isinstance(answer, PersistentPlan) else answer for answer in found]

    def plan(self, problem: Any, device: Device) -> Plan | None:
        """Return how this step does a problem on a device; None: not at all. No launch, no driver.

        How many blocks of a persistent kernel find room on the GPU depends on the compiled kernel's registers, which
        only the driver knows. This plan has as many as threads and shared memory allow.

        Args:
            problem: operands, of which shapes, dtypes and addresses are looked at, or a description without arrays.
            device: the GPU.
        """
        answer = self.first_answer(self.described(problem), device)
        # no driver here, so a plan may be asked on a laptop for any GPU
        return answer.estimated(device) if isinstance(answer, PersistentPlan) else answer

    def run(self, launch: Callable[..., None], memory: Any, operands: Any) -> None:
        """Plan for the GPU that computes on the operands, then queue the kernels.

        Args:
            launch: as `engine.launch`.
            memory: gives scratch, as for `Plan.launch`.
            operands: a problem with arrays: a `ForwardProblem`, a `BackwardProblem` or a `Product`.

        Raises:
            ValueError: no way does them.
        """
        answer = self.first_answer(operands, Device.of(operands.writing[0]))
        # the arrays are on a GPU, so its driver can say how many blocks find room
        plan = answer.queried(operands) if isinstance(answer, PersistentPlan) else answer
        if plan is None:
            raise ValueError(f"step {self.name!r} has no kernel for {operands}")
        plan.launch(launch, memory, operands)

    def does(self, operands: Any) -> bool:
        """Return True if `run` can do the operands, which have arrays."""
        # Planned only: no kernel is compiled or launched for the question.
        return self.first_answer(operands, Device.of(operands.writing[0])) is not None

    def first_answer(self, operands: Any, device: Device) -> Plan | PersistentPlan | None:
        """Return the answer of the first way that does not refuse the operands, or None."""
        for way in self.ways:  # in order of preference
            found = way(operands, device)
            if not isinstance(found, Refusal):
                return found
        return None


def simulated_by_vectors(n1: int, n2: int) -> float:
    """Return about how many seconds the simulator takes for a step whose blocks run side by side, as vectors.

    Measured on 2 cores at 2.5 GHz.
    """
    return n1 * (40e-6 + 0.4e-6 * n2)


@dataclass(frozen=True)
class Step(Rung):
    """One rung of the ladders of a norm.

    Attributes:
        row_chains: n2 -> the longest chains of its sums along a row, of all plans that dtypes and alignments lead to.
        simulated_seconds: (n1, n2) -> about how long the simulator takes.
    """

    row_chains: Callable[[int], Chains]
    simulated_seconds: Callable[[int, int], float] = field(default=simulated_by_vectors, kw_only=True)


@dataclass(frozen=True)
class ForwardStep(Step):
    """A step forward. `statistics`: how the variance is found, in `oracle.Arithmetic`'s words."""

    statistics: str


@dataclass(frozen=True)
class BackwardStep(Step):
    """A step backward. `column_chains`: (n1, n2) -> the longest chains of its sums over rows, of all plans."""

    column_chains: Callable[[int, int], Chains]
