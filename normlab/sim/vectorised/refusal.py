"""Define how the vectorised engine gives up: the launch is then undone and run by the scheduler."""

from normlab.sim.language.errors import SimulationError


class NotVectorisedError(SimulationError):
    """Something whose result the vectorised engine cannot prove equal to the scheduler's."""

    def __init__(self, reason: str):
        """Say in words that continue "the scheduler ran, because …" why the engine gives up."""
        super().__init__(reason)
        self.reason = reason
        self.line: int | None = None  # the kernel's, filled in by the statement that was running (statements.run)


class OrderError(NotVectorisedError):
    """A result that depends on the order of threads: of threads of several blocks, perhaps.

    With one block at a time the engine has the scheduler's order of blocks, so that is tried next.
    """


class CrowdedError(OrderError):
    """More accesses between two meetings than are compared: those of fewer blocks at once may be."""


class RestartError(Exception):
    """A store into an array whose earlier loads were not recorded: begin again, and record them.

    Most arrays of a launch are read and never written, and recording their loads would cost more than the loads.
    """


class WholeGridError(RestartError):
    """A meeting of all blocks, of which only some run: begin again with all of them."""
