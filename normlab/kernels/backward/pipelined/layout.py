"""Lay out rows in the shared memory of a block of the pipelined backward, and say which thread reads which part.

Pipeline stages hold rows of the saved array, of grad_output and, if there is one, of a third array, as their bits: the
residual's gradient, or the gate. After them lie the parameters of the block's columns (`parameters`).
"""

from typing import NamedTuple

from normlab.kernels.words import counted
from normlab.stages.vector import ThreadMap

ACCUMULATOR_BYTES = 4  # the pipelined kernel computes in float32
MULTIPROCESSOR_BYTES = 228 * 1024  # of shared memory, where there are clusters (9.0)
RESERVED_BYTES = 1024  # of it that the driver takes for each block
CLUSTERS_THREADS = 512  # of a multiprocessor, each of which has 128 registers


class PipelineLayout(NamedTuple):
    """How a pipelined kernel lays out rows. A row group is the threads of a block that share a row."""

    thread_map: ThreadMap  # of a row; in a cluster, of the slice of a row that one block has
    rows: int  # row groups per block: so many rows are worked on at the same time
    blocks: int  # blocks of the cluster that share a row
    stages: int  # pipeline stages per row group; each holds a row of the saved array and of grad_output
    prefetch: int  # 1 if the next row's first pass comes before a row's second pass, else 0
    saved_bytes: int  # per element of the saved array
    grad_bytes: int  # per element of grad_output
    third_bytes: int = 0  # per element of the third array: as many as of the saved array, or 0 without one
    alignments: int = 1  # at how many offsets within a vector rows begin; a cluster takes rows of one of them (`edges`)
    once: bool = False  # each row group takes at most one row, and has it fetched beside the parameters

    @property
    def words(self) -> list[str]:
        """Return each number in words."""
        said = [f"{counted(self.rows, 'row')} per block, {counted(self.thread_map.threads, 'thread')} each"]
        if self.blocks > 1:
            said.append(f"a row in {counted(self.blocks, 'block')} of one cluster")
        if self.alignments > 1:
            said.append(
                f"rows begin at {self.alignments} offsets within a vector, and a block's rows all at the same one"
            )
        return [
            *said,
            f"{counted(self.thread_map.vectors, 'vector')} of {counted(self.thread_map.width, 'element')} per thread",
            f"{counted(self.stages, 'stage')} in {ACCUMULATOR_BYTES * self.parameters_at:,} bytes of shared memory",
            "the next row's first pass comes before a row's second"
            if self.prefetch
            else "a row's second pass follows its first",
            *["blocks without a row take columns of all rows"] * self.once,
        ]

    @property
    def threads(self) -> int:
        """Return the threads per block."""
        return self.rows * self.thread_map.threads

    @property
    def filled(self) -> int:
        """Return how many vectors every thread has: the others may lie past the row's end."""
        whole_row = self.blocks == 1  # else the last block may have far fewer columns than the others
        return self.thread_map.filled if whole_row or self.thread_map.whole else 0

    @property
    def resident(self) -> int:
        """Return how many blocks a multiprocessor must have registers for, at least, if no block shares a row."""
        # Without a prefetch a second block works while the first one waits. Straight-line loads took 139 registers at
        # 520 columns of bfloat16, which left room for one: 0.77 of a copy instead of 0.86 (LayerNorm, H200).
        several = self.prefetch == 0 and self.blocks == 1 and self.threads <= 256
        return 2 if several and not self.thread_map.whole else 1

    def resident_in_clusters(self, parameter_bytes: int) -> int:
        """Return the same for blocks that share rows: as many as shared memory holds, of threads with 128 registers.

        parameter_bytes: of parameters in shared memory per column.
        """
        held = self.shared_bytes(parameter_bytes) + self.exchange_bytes + RESERVED_BYTES
        return max(1, min(MULTIPROCESSOR_BYTES // held, CLUSTERS_THREADS // self.threads))

    @property
    def alone(self) -> bool:
        """Return True if one warp has the whole row, or several rows: there is nothing to exchange."""
        return self.thread_map.warps * self.blocks == 1

    @property
    def keeps(self) -> bool:
        """Return True if registers keep a vector of a gated row from the first pass to the second (`gated`)."""
        # a prefetch has another row's first pass in between
        return self.prefetch == 0 and self.thread_map.vectors == 1

    @property
    def prefetched(self) -> int:
        """Return how many rows each row group starts to copy before its first row's first pass."""
        # with a prefetch of 1 a stage is free only after the second pass, so all stages are filled at once
        return 1 if self.once else self.stages - 1 + self.prefetch

    @property
    def in_flight(self) -> int:
        """Return how many rows' copies may still be in flight when a first pass begins."""
        # not the row of the pass, nor, with a prefetch of 1, the previous row, whose stage is still in use
        return self.stages - 1 - self.prefetch

    @property
    def grads_at(self) -> int:
        """Return the offset of the stages of grad_output, in its elements."""
        return self.stages * self.rows * self.thread_map.columns * self.saved_bytes // self.grad_bytes

    @property
    def thirds_at(self) -> int:
        """Return the offset of the third array's stages, in its elements, which are as wide as the saved ones."""
        both = self.saved_bytes + self.grad_bytes
        return self.stages * self.rows * self.thread_map.columns * both // self.saved_bytes

    @property
    def parameters_at(self) -> int:
        """Return the offset of the parameters, in accumulators."""
        # per column: all stages of one array, then of the next
        together = self.saved_bytes + self.grad_bytes + self.third_bytes
        return self.stages * self.rows * self.thread_map.columns * together // ACCUMULATOR_BYTES

    @property
    def parameter_parts(self) -> tuple[int, int, int]:
        """Return how float32 parameters are cut for loads of 16 bytes: (elements per part, parts per vector, distance).

        The distance is that of a vector's parts from each other, in elements.
        """
        # a lane reads at most 16 bytes at once: eight float32 are two parts (`parameters_wide.part_offset`)
        part = min(self.thread_map.width, 16 // ACCUMULATOR_BYTES)
        return part, self.thread_map.width // part, self.thread_map.threads * part

    @property
    def exchange_bytes(self) -> int:
        """Return the bytes of the exchange buffer: two phases of two sums, of each row's warps in this block."""
        return ACCUMULATOR_BYTES * 2 * self.rows * 2 * self.thread_map.warps

    def shared_bytes(self, parameter_bytes: int) -> int:
        """Return the dynamic shared memory for the pipeline stages and so many bytes of parameters per column."""
        # At the end the row groups' sums of the columns lie where the stages were. One stage is large enough, and short
        # rows, whose sums have gaps, have two.
        return ACCUMULATOR_BYTES * self.parameters_at + parameter_bytes * self.thread_map.columns
