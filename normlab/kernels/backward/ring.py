"""How the rows that a block works on lie in its shared memory, and who reads which part of them.

A ring of stages holds rows of the saved array and of grad_output, as their bits; behind it lie the parameters of the
block's columns (`parameters`).
"""

from typing import NamedTuple

from normlab.kernels.words import counted
from normlab.stages.vector import ThreadMap

ACCUMULATOR_BYTES = 4  # the pipelined kernel computes in float32


class Layout(NamedTuple):
    """What a pipelined kernel is built for.

    thread_map: of a row, or of its slice in one block of a cluster. rows: of one block, at the same time.
    blocks: of the cluster that shares a row. stages: rows of a team in the ring. lag: 1 if a row's second pass is made
    after the next row's first, 0 if at once. saved_bytes, grad_bytes: an element's.
    """

    thread_map: ThreadMap
    rows: int
    blocks: int
    stages: int
    lag: int
    saved_bytes: int
    grad_bytes: int

    @property
    def words(self) -> list[str]:
        """Return each number in words."""
        said = [f"{counted(self.rows, 'row')} per block, {counted(self.thread_map.threads, 'thread')} each"]
        if self.blocks > 1:
            said.append(f"a row in {counted(self.blocks, 'block')} of one cluster")
        return [
            *said,
            f"{counted(self.thread_map.vectors, 'vector')} of {counted(self.thread_map.width, 'element')} per thread",
            f"{counted(self.stages, 'stage')} in {ACCUMULATOR_BYTES * self.parameters_at:,} bytes of shared memory",
            "the next row's first pass comes before a row's second"
            if self.lag
            else "a row's second pass follows its first",
        ]

    @property
    def threads(self) -> int:
        """Threads a block."""
        return self.rows * self.thread_map.threads

    @property
    def fetched(self) -> int:
        """Rows of a team that are on their way before the first pass over one."""
        return self.stages - 1 + self.lag

    @property
    def grads_at(self) -> int:
        """Where the ring of grad_output begins, in its elements."""
        return self.stages * self.rows * self.thread_map.columns * self.saved_bytes // self.grad_bytes

    @property
    def parameters_at(self) -> int:
        """Where the parameters begin, in accumulators."""
        together = self.saved_bytes + self.grad_bytes
        return self.stages * self.rows * self.thread_map.columns * together // ACCUMULATOR_BYTES

    @property
    def parameter_parts(self) -> tuple[int, int, int]:
        """How a thread's vector of parameters is cut into 16 bytes: (elements a part, parts, from part to part)."""
        part = min(self.thread_map.width, 16 // ACCUMULATOR_BYTES)
        return part, self.thread_map.width // part, self.thread_map.threads * part

    @property
    def board_bytes(self) -> int:
        """Static shared memory: two phases of two sums, of each row's warps in this block."""
        return ACCUMULATOR_BYTES * 2 * self.rows * 2 * self.thread_map.warps

    def shared_bytes(self, parameter_bytes: int) -> int:
        """Dynamic shared memory for the ring and so many bytes of parameters a column.

        In the end the teams' sums of the columns lie where the ring was: a stage alone has the room.
        """
        return ACCUMULATOR_BYTES * self.parameters_at + parameter_bytes * self.thread_map.columns
