"""A block per row, its sums by a tree in shared memory.

Moves: x three times, but coalesced: 32 neighbouring threads read 32 neighbouring elements, every byte of a sector is used,
and the second and third reading mostly hit the cache.
Bound by: the trees. Two a row, each log2(128) = 7 rounds with a barrier of the whole block in each.
Next: let the 32 threads of a warp exchange values directly; most of those barriers go.
"""

import math
from functools import cache

from normlab.engine import accumulator, cast, cuda, float32, widen
from normlab.kernels.step import Chains, ForwardStep
from normlab.stages.block import block_tree_sum
from normlab.stages.recompute import affine, element, normalised_from_input

THREADS = 128
GRID_LIMIT = 2**31 - 1


@cache
def build(dtype):
    """The kernel for an accumulator dtype, which its shared memory has."""

    @cuda.jit
    def forward_block_tree(x, weight, bias, eps, output, mean, invvar):
        buffer = cuda.shared.array(THREADS, dtype)
        n2 = x.shape[1]
        row = cuda.blockIdx.x
        while row < x.shape[0]:
            center = cast(0, invvar)
            if mean is not None:
                for column in range(cuda.threadIdx.x, n2, THREADS):
                    center += widen(x[row, column])
                center = block_tree_sum(center, buffer) / cast(n2, invvar)
                if cuda.threadIdx.x == 0:
                    mean[row] = center
            square_sum = cast(0, invvar)
            for column in range(cuda.threadIdx.x, n2, THREADS):
                deviation = widen(x[row, column]) - center
                square_sum += deviation * deviation
            square_sum = block_tree_sum(square_sum, buffer)
            scale = float32(1) / math.sqrt(square_sum / cast(n2, invvar) + eps)
            if cuda.threadIdx.x == 0:
                invvar[row] = scale
            for column in range(cuda.threadIdx.x, n2, THREADS):
                value = normalised_from_input(widen(x[row, column]), center, scale)
                output[row, column] = cast(affine(value, element(weight, column), element(bias, column)), output)
            row += cuda.gridDim.x

    return forward_block_tree


def _run(launch, x, weight, bias, eps, output, mean, invvar):
    kernel = build(accumulator(invvar))
    launch(kernel, min(x.shape[0], GRID_LIMIT), THREADS, x, weight, bias, eps, output, mean, invvar)


STEP = ForwardStep(
    name="block_tree",
    summary="a block per row, trees in shared memory",
    run=_run,
    row_chains=lambda n2: Chains(terms=-(-n2 // THREADS), merges=7),
    statistics="two_pass",
)
