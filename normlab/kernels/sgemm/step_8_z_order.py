"""Place the lanes of a warp in its tile of C in z-order. The kernel is `tiling`'s, with step 7's tiles.

Idea: shared memory serves a load of 16 bytes for 8 lanes at a time. It serves 16 lanes at a time if every lane reads
the same address as lane ^ 1, or every lane the same as lane ^ 2. Lanes that share a row of C read the same elements of
A, and lanes that share a column the same elements of B. In step 7, with rows of 8 lanes, the loads of A meet the
condition and those of B never do. In z-order a lane shares a row with lane ^ 1 and a column with lane ^ 2, so both do.
Moves: 8 wavefronts per k and warp, 4 for A and 4 for B, where step 7 has 12.
Takes: 123 registers, 8320 bytes; 2 blocks per multiprocessor, bound by registers.
Bound by: the wait for the next tile, and FMA's share of the instructions, 512 of 590.
Measured: 36.3 TFLOP/s at 4096 x 4096 x 4096 on an H200, 0.71 of cuBLAS in float32. Step 7 has 36.2, and at 8192 as much
as this step. The loops are the same, except that this one has one instruction less.
Next: fetch the next tile while this one is multiplied.
"""

from functools import partial

from normlab.kernels.sgemm import tiling
from normlab.kernels.sgemm.product import ProductStep
from normlab.stages.lanes import lanes_in_z_order

DOWN, ACROSS = 4, 8  # rows and columns of lanes in a warp
TILING = tiling.of_warps(DOWN, ACROSS, lanes_in_z_order)

STEP = ProductStep(
    name="z_order",
    summary="a warp's lanes in z-order: neighbours share addresses",
    ways=(partial(tiling.plan, "z_order", TILING),),
)
