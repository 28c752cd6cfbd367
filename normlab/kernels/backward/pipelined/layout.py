"""Lay out rows in the shared memory of a block of the pipelined backward, and say which thread reads which part.

Pipeline stages hold rows of the saved array and of grad_output, as their bits. After them lie the parameters of the
block's columns (`parameters`).
"""

from typing import NamedTuple

from normlab.kernels.words import counted
from normlab.stages.vector import ThreadMap

ACCUMULATOR_BYTES = 4  # the pipelined kernel computes in float32


class Layout(NamedTuple):
    """What a pipelined kernel is built for.

    thread_map: of a row, or of its slice in one block of a cluster. rows: of one block, at the same time: its row
    groups. blocks: of the cluster that shares a row. stages: pipeline stages of a row group, a row each. prefetch: rows
    whose first pass is made before a row's second pass, 0 or 1. saved_bytes, grad_bytes: an element's.
    """

    thread_map: ThreadMap
    rows: int
    blocks: int
    stages: int
    prefetch: int
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
            if self.prefetch
            else "a row's second pass follows its first",
        ]

    @property
    def threads(self) -> int:
        """Return the threads per block."""
        return self.rows * self.thread_map.threads

    @property
    def alone(self) -> bool:
        """Return True if one warp has the whole row, or several rows: there is nothing to exchange."""
        return self.thread_map.warps * self.blocks == 1

    @property
    def prefetched(self) -> int:
        """Return the rows of a row group whose copies are started before its first pass over the first row."""
        # with a prefetch of 1 a stage is free only after the second pass, so all stages are filled at once
        return self.stages - 1 + self.prefetch

    @property
    def in_flight(self) -> int:
        """Return the rows whose copies may still be in flight when a first pass begins."""
        # not the row of the pass, nor, with a prefetch of 1, the previous row, whose stage is still in use
        return self.stages - 1 - self.prefetch

    @property
    def grads_at(self) -> int:
        """Return the offset of the stages of grad_output, in its elements."""
        return self.stages * self.rows * self.thread_map.columns * self.saved_bytes // self.grad_bytes

    @property
    def parameters_at(self) -> int:
        """Return the offset of the parameters, in accumulators."""
        together = self.saved_bytes + self.grad_bytes  # per column: all stages of one array, then of the other
        return self.stages * self.rows * self.thread_map.columns * together // ACCUMULATOR_BYTES

    @property
    def parameter_parts(self) -> tuple[int, int, int]:
        """Return a thread's vector of parameters in parts of 16 bytes: (elements per part, parts, their distance)."""
        # a lane reads at most 16 bytes at once: eight float32 are two parts (`parameters_wide.placer`)
        part = min(self.thread_map.width, 16 // ACCUMULATOR_BYTES)
        return part, self.thread_map.width // part, self.thread_map.threads * part

    @property
    def exchange_bytes(self) -> int:
        """Return the bytes of the exchange buffer: two phases of two sums, of each row's warps in this block."""
        return ACCUMULATOR_BYTES * 2 * self.rows * 2 * self.thread_map.warps

    def shared_bytes(self, parameter_bytes: int) -> int:
        """Return the dynamic shared memory for the pipeline stages and so many bytes of parameters per column."""
        # at the end the row groups' sums of the columns lie where the stages were: one stage is large enough
        return ACCUMULATOR_BYTES * self.parameters_at + parameter_bytes * self.thread_map.columns
