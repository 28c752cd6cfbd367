"""Bring tiles of short rows through shared memory: whole vectors come and go, and few lanes own each row.

Idea: rows of a few columns leave lanes idle. At one column step 2 uses one lane of a warp, and at two columns the
pipelined kernel uses one lane of eight. Here a warp copies a tile of rows as a line of memory (`stages.line_tile`).
Then 1 to 32 lanes own each row, with up to eight columns each. A lane has the same columns of all its rows, so
parameters and columns' sums stay in registers. It takes several rows together, whose sums travel through the same
shuffles (`stages.warp.sums_of_lanes`). The rows' gradients take the place of dy, and go back through shared memory,
too. A warp waits for its own copies and its own lanes, never for another warp. Where rows are few, all warps of a block
take each tile together.
Moves: dy and the saved array once, grad_input once, and the statistics, which are 8 of 14 bytes at one column of
bfloat16.
Bound by: memory; in 16 bits nearly as much by instructions, of which an element takes 14 (RMSNorm, 64 columns) to 24
(LayerNorm, 7 columns), as Nsight Compute counts them.
Measured: the reasons in `tiles`, and docs/speed.

    tiles      which rows are taken so, and why; `kernels.tiles` has their layout
    rows       a row's two passes, by the lanes that own it
    kernel     fetch, take and store tile after tile
    columns    the columns' sums, from a lane's registers to the gradients
    plan       which rows are taken so
"""
