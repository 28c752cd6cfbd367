"""Stage a sample's parameters in shared memory: a modulated norm's scale and shift, one row per sample.

Many samples are worked on at a time, so a row's parameters are rarely in L1. Loaded where they are applied, each vector
waits for L2, because the compiler moves no load across the store of the vector before. A block therefore takes rows of
one sample, and asynchronous copies bring the parameters while the rows are fetched and added up.

    block        0     1     2     3        two samples of three rows, two rows per block
    rows         0 1   2     3 4   5

Tried without gain: blocks that take two or four times as many rows, one after another.
"""

from functools import cache
from typing import Any, NamedTuple

from normlab.engine import cast, commit_copies, cuda, int32, uint32, wait_copies
from normlab.stages.ahead import NARROWEST, fetcher
from normlab.stages.vector import ThreadMap


class SampledMap(NamedTuple):
    """The thread map of a row, how many rows a block has, and the bytes of an element of scale and shift."""

    thread_map: ThreadMap
    rows: int
    itemsize: int

    @property
    def shared_bytes(self) -> int:
        """Return the bytes of shared memory for both parameters."""
        narrow = self.itemsize * self.thread_map.width < NARROWEST  # `fetcher` holds such elements as float32
        return 2 * self.thread_map.columns * (NARROWEST if narrow else self.itemsize)

    def blocks(self, n1: int, samples: int) -> int:
        """Return the blocks for n1 rows of so many samples."""
        return samples * -(-n1 // (samples * self.rows))


@cache
def rows_finder(rows: int) -> Any:
    """Return the device function `rows_of(output, weight) -> (first row of the block, end of its sample's rows)`."""

    @cuda.jit(device=True)
    def rows_of(output, weight):
        # in 32 bits: a division in 64 takes as long as normalising a vector
        of_sample = uint32(output.shape[0]) // uint32(weight.shape[0])
        blocks = (of_sample + uint32(rows - 1)) // uint32(rows)
        sample = uint32(cuda.blockIdx.x) // blocks
        begin = int32(sample) * int32(of_sample)
        # Blocks count on from sample to sample, and a sample's last block may have fewer rows: the end keeps it from
        # the next sample's, which have other parameters.
        return begin + (cuda.blockIdx.x - int32(sample) * int32(blocks)) * rows, begin + int32(of_sample)

    return rows_of


@cache
def sample_stager(sampled: SampledMap, dtype: Any, offset: float) -> tuple[Any, Any, Any]:
    """Return the device functions of a block whose rows are of one sample.

        stage(weight, bias, output, row)                        start to copy the parameters of the sample of `row`
        arrive()                                                wait for them, with the whole block
        load_parameters(gammas, betas, weight, bias, column)    as of `stages.output.parameter_loader`

    dtype: the accumulator's. offset: gamma is weight + offset. weight, bias: (samples, n2).
    """
    width, columns = sampled.thread_map.width, sampled.thread_map.columns
    together = sampled.thread_map.threads * sampled.rows * width
    kind, fetch, take = fetcher(dtype, sampled.itemsize, width)

    @cuda.jit(device=True)
    def stage(weight, bias, output, row):
        staged = cuda.shared.array(0, kind, alignment=16)
        sample = uint32(row) // (uint32(output.shape[0]) // uint32(weight.shape[0]))
        # All row groups of the block copy together, because all their rows need the same parameters.
        column = (cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x) * width
        while column < output.shape[1]:
            fetch(staged, column, weight, (sample, column))
            fetch(staged, columns + column, bias, (sample, column))
            column += together
        # A group of copies is what `wait_copies` waits for. Until `arrive` the threads fetch and add up their rows.
        commit_copies()

    @cuda.jit(device=True)
    def arrive():
        wait_copies(0)
        cuda.syncthreads()  # all threads' copies have arrived before a thread reads them

    @cuda.jit(device=True)
    def load_parameters(gammas, betas, weight, bias, column):
        staged = cuda.shared.array(0, kind, alignment=16)
        # weight and bias only tell the dtype of the staged bits.
        take(gammas, staged, column, weight)
        take(betas, staged, columns + column, bias)
        if offset:
            for k in range(width):
                gammas[k] += cast(offset, gammas)

    return stage, arrive, load_parameters
