# %% [markdown]
# # 14. The matrix product: registers, warp tiles, double buffers
#
# **Aim.** Keep the multipliers busy: a tile of C in each thread's registers, lanes that share addresses, stores without
# conflicts, and the next tile under way while this one is multiplied.
#
# **Before.** [Tutorial 13](13_sgemm_tiles.ipynb).
#
# **Time.** 40 minutes.

# %%
import matplotlib.pyplot as plt
import numpy as np

from normlab.bench import records
from normlab.engine import cuda, launch, use_gpu
from normlab.kernels import LADDERS, Product, roofline
from normlab.kernels.sgemm import step_4_outer_product, tiling
from normlab.learn import lesson
from normlab.sim import trace
from normlab.stages import lanes, thread_tile

lesson.begin()
f32 = np.float32
steps = {step.name: step for step in LADDERS["sgemm"]}

# %% [markdown]
# ## The account
#
# Tutorial 13 ended with a block's tile in shared memory, and multipliers that wait for shared memory. Let us keep an
# account, for **one warp and one k**. A multiprocessor of an H200 can, in each clock,
#
# - begin four FMA instructions of a warp (128 multipliers / 32 lanes);
# - serve **one** wavefront of shared memory (up to 128 bytes).
#
# `shared_tile`: one FMA, a quarter of a clock; two wavefronts, two clocks. The multipliers are busy an eighth of the
# time.
#
# To change the ratio, a thread must use what it has read more than once. Let it compute **8 × 8** elements of C: for
# each k it reads 8 elements of A and 8 of B, and does 64 FMA with them, all pairs. That is an **outer product**.

# %%
figure, ax = plt.subplots(figsize=(5, 4.2), layout="constrained")
ax.axis("off")
ax.set(xlim=(-1.6, 8.2), ylim=(8.2, -1.8), aspect="equal")
for i in range(8):
    ax.add_patch(plt.Rectangle((-1.3, i), 0.9, 0.9, facecolor="#c8401a"))
    ax.add_patch(plt.Rectangle((i, -1.3), 0.9, 0.9, facecolor="#1b4f8a"))
    for j in range(8):
        ax.add_patch(plt.Rectangle((j, i), 0.9, 0.9, facecolor="#dfe5ec"))
ax.text(-0.85, 8.15, "a[i]", ha="center", va="top", color="#c8401a")
ax.text(8.0, -0.85, "b[j]", va="center", color="#1b4f8a")
ax.set_title("16 reads, 64 FMA: sums[i, j] += a[i] b[j]")
plt.show()
print(lesson.source(thread_tile.outer_product(8, 8)))

# %% [markdown]
# The 64 sums stay in **registers**, from the first k to the last. A block of 256 threads then has a tile of 128 × 128
# of C. Eight k's of A and B at a time lie in shared memory: 128 × 8 and 8 × 128.
#
# Now the account: 64 FMA take 16 clocks. So **16 wavefronts** for a k of a warp is what shared memory may cost. Count
# what the steps take. (`trace` needs one block and one tile for that: 128 × 128 × 8.)


# %%
def traced(step, m=128, n=128, k=8):
    """A step's launch on random matrices, traced; and the largest error."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(m, k)).astype(f32), rng.normal(size=(k, n)).astype(f32)
    output = np.full((m, n), np.nan, f32)
    found = []

    def launch_traced(kernel, grid, block, *arguments, shared_bytes=0):
        found.append(trace(kernel)[grid, block, 0, shared_bytes](*arguments))

    step.run(launch_traced, None, Product(f32(1), a, b, f32(0), None, output))
    return found[0], np.abs(output - a.astype(np.float64) @ b).max()


names = ("inner_product", "outer_product", "vectors", "padded", "warp_tile", "z_order")
traces = {}
for name in names:
    traces[name], error = traced(steps[name])
    print(f"{name:14} largest error {error:.1e}   {steps[name].summary}")

# %%
WARPS, DEPTH = 8, 8
counted = {
    name: {
        kind: one.metrics[f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{kind}.sum"] / (WARPS * DEPTH)
        for kind in ("ld", "st")
    }
    for name, one in traces.items()
}
figure, ax = plt.subplots(figsize=(9, 3.4), layout="constrained")
loads = [one["ld"] for one in counted.values()]
stores = [one["st"] for one in counted.values()]
ax.bar(list(counted), loads, color="#1b4f8a", label="loads")
ax.bar(list(counted), stores, bottom=loads, color="#c8401a", label="stores of the tiles")
for place, value in enumerate(loads):
    text = f"{value:g} + {stores[place]:.2g}"
    ax.text(place, max(20, 1.15 * (value + stores[place])), text, ha="center", fontsize=8)
ax.axhline(16, color="black", linewidth=0.8)
ax.text(5.5, 40, "16: what the multipliers allow", ha="right", fontsize=8)
ax.set(
    ylabel="wavefronts for a k of a warp",
    yscale="symlog",
    ylim=(0, 900),
    title="Shared memory, as the source asks for it (counted)",
)
ax.legend(fontsize=8)
plt.show()

# %% [markdown]
# Now step by step through the picture.
#
# ### inner_product → outer_product
#
# Both have 8 × 8 elements a thread. The first computes each of the 64 as an inner product, and reads A and B for each
# anew. The second takes k by k and reads each element once. The source of the second:

# %%
print(lesson.source(step_4_outer_product.multiply_k))

# %% [markdown]
# (A compiler can see that `inner_product` reads the same again and again, and keep it in registers. Numba's does; each
# step's file tells. The count above is of the source.)
#
# Still 48 wavefronts, though a thread reads only 16 elements. Why? Look at the load of B:

# %%
line = lesson.line(step_4_outer_product.multiply_k, "b_part[i] = load(b_tile")
_ = traces["outer_product"].draw_banks(line, "ld", "b_tile")

# %% [markdown]
# A thread's eight columns are neighbours. So in one instruction, neighbouring threads read columns that are 8 apart:
# banks 0, 8, 16, 24, and then again. Four words in each of four banks: four wavefronts. Eight such loads are 32. Of A,
# the two rows of threads want two elements, 8 rows × 8 words apart: the same bank, two wavefronts. Eight of these are 16,
# and 32 + 16 = 48.
#
# ### vectors
#
# Eight neighbours are two vectors of 16 bytes. And A? A thread wants 8 *rows* for one k; in A's tile they lie 8
# elements apart. So A is **transposed** on its way into shared memory: then they lie side by side.
#
# Loads: 20 wavefronts, 4 for A and 16 for B. B's could be 8. Here are the bank conflicts of tutorial 12 again: a thread's
# eight columns lie in a row, so that lanes begin 32 bytes apart. `warp_tile` will cure that on its way.
#
# But the stores have got dearer: a thread has four neighbours along k, which go to four different rows of the transposed
# tile.

# %%
from normlab.stages import tile

putter = tile.transposed_putter(128, 8, 4, 256, 128)
store_line = lesson.line(putter, "store(tile")
_ = traces["vectors"].draw_banks(store_line, "st")

# %% [markdown]
# ### padded
#
# The cure is known from tutorials 5 and 8: rows of 132 words instead of 128. Why 132 and not 129? A row must begin at a
# multiple of 16 bytes, or the vectors cannot be loaded.

# %%
_ = traces["padded"].draw_banks(store_line, "st")

# %% [markdown]
# <details><summary><b>Question.</b> Two lanes store to words 4 · 128 apart, or 4 · 132. Which banks?</summary>
#
# 512 mod 32 = 0: the same bank. 528 mod 32 = 16: half a turn away.
# </details>
#
# ### warp_tile
#
# Which elements of C belong to one warp? So far, 256 threads stand in 16 rows of 16. A warp is two of these rows: 2 ×
# 16 threads, 16 × 128 elements. For one k it reads 16 elements of A and 128 of B. If its lanes stand **4 × 8** instead,
# it covers 32 × 64 elements and reads 32 + 64. Fewer different addresses: fewer wavefronts.

# %%
places = {
    "padded": lanes.threads_in_rows(16, 8),
    "warp_tile": tiling.of_warps(4, 8, lanes.lanes_in_rows(4)).place,
    "z_order": tiling.of_warps(4, 8, lanes.lanes_in_z_order).place,
}


def corners(place):
    """(row, column) of the first element of each lane of warp 0, as the device function `place` says."""

    @cuda.jit
    def ask(rows, columns):
        rows[cuda.threadIdx.x], columns[cuda.threadIdx.x] = place(cuda.threadIdx.x)

    rows, columns = np.zeros((2, 32), np.int64)
    launch(ask, 1, 32, rows, columns)
    return list(zip(rows.tolist(), columns.tolist(), strict=True))


figure, axes = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
for ax, (name, place) in zip(axes, places.items(), strict=True):
    warp = np.full((128, 128), np.nan)
    for lane, (row, column) in enumerate(corners(place)):
        if name == "padded":
            warp[row : row + 8, column : column + 8] = lane
        else:  # two runs of four rows by two of four columns, with the other lanes' in between
            for down in (0, 16):
                for across in (0, 32):
                    warp[row + down : row + down + 4, column + across : column + across + 4] = lane
    ax.imshow(warp, cmap="viridis", interpolation="nearest")
    ax.set(title=name, xlabel="column of the block's tile", xticks=[0, 64, 127], yticks=[0, 64, 127])
figure.suptitle("Where the elements of warp 0 lie (colour: lane)")
plt.show()

# %% [markdown]
# In the two on the right, a thread's 8 × 8 is cut into four pieces of 4 × 4. So in one instruction, lanes beside each
# other read vectors beside each other: the cure by halves of tutorial 12.
#
# ### z_order
#
# The last refinement: which lane stands where in the 4 × 8. Shared memory serves a warp's 16-byte loads in groups of 8
# lanes. It takes 16 lanes at a time if they come in pairs that want the same address: each lane the same as lane XOR 1,
# or each the same as lane XOR 2. In **z-order** a lane shares its row with lane XOR 1 and its column with lane XOR 2. So it
# works for A, which goes by rows, and for B, which goes by columns.

# %%
figure, axes = plt.subplots(1, 2, figsize=(8, 2.4), layout="constrained")
for ax, (name, place) in zip(
    axes, (("in rows", lanes.lanes_in_rows(4)), ("in z-order", lanes.lanes_in_z_order)), strict=True
):
    grid = np.zeros((4, 8), int)
    for lane in range(32):
        row, column = (int(value) for value in place.py_func(lane))
        grid[row, column] = lane
    ax.imshow(grid, cmap="Blues", vmax=45)
    for row in range(4):
        for column in range(8):
            ax.text(column, row, grid[row, column], ha="center", va="center", fontsize=8)
    ax.set(title=name, xticks=[], yticks=[])
plt.show()
print("wavefronts of loads for a k of a warp:", {name: one["ld"] for name, one in counted.items() if name in places})

# %% [markdown]
# 8 wavefronts where 16 are allowed. Shared memory is no longer what binds.
#
# ### Held against an H200
#
# The account gives a limit for each step: 16 clocks of FMA, divided by its wavefronts where these are more. (For
# `inner_product` the limit of `outer_product` holds, since that is what the compiler makes of it.) Beside it what
# `normlab bench ladder sgemm` measured, 4096 × 4096 × 4096, as a fraction of all multipliers at work:

# %%
(record,) = records.load(["ladder_sgemm_4096_h200"])
measured = {row["step"]: row for row in record["steps"]}
allowed = {name: 16 / max(16, one["ld"] + one["st"]) for name, one in counted.items()}
allowed["inner_product"] = allowed["outer_product"]
figure, ax = plt.subplots(figsize=(9, 3), layout="constrained")
ax.bar(names, [allowed[name] for name in names], color="#dfe5ec", label="what the account allows")
ax.bar(names, [measured[name]["of_peak"] for name in names], 0.5, color="#1b4f8a", label=f"measured, {record['gpu']}")
for place, name in enumerate(names):
    ax.text(place, measured[name]["of_peak"] + 0.02, f"{measured[name]['of_peak']:.2f}", ha="center", fontsize=8)
ax.set(ylabel="multipliers at work", ylim=(0, 1.1))
ax.legend(fontsize=8, loc="upper left")
plt.show()

# %% [markdown]
# `outer_product` is at its limit: there shared memory binds, and little else. From `vectors` on the limit rises, and the
# measured speed stays behind more and more. Padding saved half a wavefront of 21, and the measurement does not notice;
# nor does it notice z-order much. So something else binds by now. It is good to know that *before* one polishes the
# wavefronts any further.
#
# ## While the tile is on its way
#
# What binds now is waiting. In each turn of the loop the block fetches the next tiles from global memory, stores them,
# meets at a barrier, multiplies, meets again. While it fetches, no thread of this block multiplies; a load from global
# memory takes several hundred clocks.
#
# **Double buffering**: have two halves in shared memory. Begin to fetch the next tile into registers; multiply this
# one; then store what has arrived into the *other* half. One barrier is enough, because the half that is written is not
# the half that is read.

# %%
figure, axes = plt.subplots(2, 1, figsize=(10, 3), layout="constrained", sharex=True)
colours = {"fetch": "#c8401a", "store": "#7f7f7f", "multiply": "#1b4f8a"}
for ax, title, turns in (
    (axes[0], "one buffer", [(0, "fetch", 3), (3, "store", 0.6), (3.6, "multiply", 4), (7.6, "fetch", 3), (10.6, "store", 0.6), (11.2, "multiply", 4)]),
    (axes[1], "two buffers", [(0, "fetch", 3), (3, "store", 0.6), (3.6, "fetch", 3), (3.6, "multiply", 4), (7.6, "store", 0.6), (8.2, "fetch", 3), (8.2, "multiply", 4)]),
):  # fmt: skip
    for start, what, length in turns:
        ax.barh(1 if what == "multiply" else 0, length, left=start, color=colours[what], edgecolor="white")
        ax.text(
            start + length / 2,
            1 if what == "multiply" else 0,
            what if length > 1 else "",
            ha="center",
            va="center",
            color="white",
            fontsize=8,
        )
    ax.set(yticks=[0, 1], yticklabels=["memory", "multipliers"], title=title, xlim=(0, 16))
axes[1].set_xlabel("time (a sketch, not a measurement; grey: store into shared memory)")
plt.show()

# %%
one_buffer, _ = traced(steps["z_order"], k=32)
two_buffers, error = traced(steps["double_buffer"], k=32)
for name, one in (("z_order", one_buffer), ("double_buffer", two_buffers)):
    print(f"{name:14} barriers for 4 tiles along k: {one.metrics['normlab__barriers.sum']}")
print("largest error with two buffers:", error)

# %% [markdown]
# The same trick once more inside: while the outer product of one k is computed, the elements of the next k are loaded
# from shared memory into registers. And the last step, `pipelined`, goes further: `copy_async` (tutorial 12) brings
# several tiles ahead, without registers on their way: three tiles of 24 k's lie in shared memory.
#
# ## Registers decide how many blocks fit
#
# 64 sums, 16 elements of A and B, the same again for the next k, staged vectors, addresses: some 128 registers for each
# thread. The files of the steps say how many the compiler took. With 256 threads per block:

# %%
import re
import sys

for name in ("outer_product", "padded", "double_buffer", "pipelined"):
    told = sys.modules[f"normlab.kernels.sgemm.step_{LADDERS['sgemm'].index(steps[name])}_{name}"].__doc__
    registers, size, unit = re.search(r"Takes: (\d+) registers,[^;]*?([\d,]+) (KB|bytes)", told).groups()
    shared_bytes = int(size.replace(",", "")) * (1024 if unit == "KB" else 1)
    found = roofline.residency(int(registers), shared_bytes, 256)
    print(
        f"{name:14} {registers} registers, {shared_bytes:6,} shared bytes: {found.occupancy.blocks} blocks a multiprocessor, "
        f"occupancy {found.occupancy.fraction:.0%}, bound by {found.bound_by}"
    )

# %% [markdown]
# An occupancy of 25 %; and yet `double_buffer` and `pipelined` are the fastest of all, as the record below shows. For
# arithmetic, a thread needs few others to hide behind if it has much to do that does not wait for anything: 64 independent
# sums. (`vectors` and `padded` have 25 %, too, and are slower: occupancy alone says little in either direction.)
#
# ## The order of blocks
#
# 264 blocks run at the same time (two on each of 132 multiprocessors). They read rows of A and columns of B; what
# several of them read, L2 gives again. If they lie in one long row of C, they share a row of A and nothing of B. If
# they form something like a square, they share both.

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
for ax, (name, place) in zip(
    axes, (("in rows", lanes.blocks_in_rows), ("in bands of 8 rows", lanes.blocks_in_bands(8))), strict=True
):
    wave = np.zeros((64, 64))
    for block in range(264):
        wave[tuple(int(value) for value in place.py_func(block, 64, 64))] = 1
    hit = roofline.l2_hit(128, 128, 64, 64, 264, place.py_func)
    ax.imshow(wave, cmap="Blues", vmax=1.5)
    ax.set(title=f"{name}: L2 gives {hit:.0%} again", xlabel="blocks of C, 8192 x 8192")
figure.suptitle("The first 264 blocks (computed)")
plt.show()

# %% [markdown]
# <details><summary><b>Question.</b> By the roofline (64 × 64 blocks of 128 × 128), does that matter on an H200?</summary>
#
# Little. A tile of 128 gives 32 operations a byte even without L2, and 14 are enough. On a GPU with less bandwidth for its
# multipliers it would. Measured, <code>block_order</code> is even slower than <code>double_buffer</code> below,
# by <!--=block order slower-->5 to 6<!--=--> % at any size, but not for the order: the compiler gives its loop other registers, and 43 of 512 multiply-adds read three of
# the same bank, which takes them a clock more.
# </details>
#
# ## The whole ladder
#
# All steps compute each element of C as the same chain of additions along k. So they must agree to the last bit, also
# at ragged edges:

# %%
import normlab

rng = np.random.default_rng(2)
a, b = rng.normal(size=(40, 12)).astype(f32), rng.normal(size=(12, 36)).astype(f32)
results = {step.name: normlab.sgemm(a, b, step=step.name) for step in LADDERS["sgemm"]}
print({name: bool(np.array_equal(result, results["naive"])) for name, result in results.items()})

# %%
size = 4096 if use_gpu() else 32
a, b, output = lesson.on_device(*(np.ones((size, size), f32) for _ in range(3)))
for step in LADDERS["sgemm"]:
    took = lesson.timed(lambda step=step: step.run(launch, None, Product(f32(1), a, b, f32(0), None, output)))
    speed = f", {roofline.product_operations(size, size, size) / took.seconds / 1e12:.1f} TFLOP/s" if use_gpu() else ""
    print(f"{step.name:14} {took}{speed}")

# %% [markdown]
# On a GPU this prints the speed of every step, and `normlab bench ladder sgemm` sets them beside cuBLAS, NVIDIA's own
# library. Here is its record of an H200:

# %%
figure, ax = plt.subplots(figsize=(9, 3.6), layout="constrained")
rows = record["steps"]
bars = ax.barh([row["step"] for row in rows], [row["tflops"] for row in rows], color="#1b4f8a")
clear = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # the lines do not run through the numbers
ax.bar_label(bars, fmt="{:.1f}", padding=3, fontsize=8, bbox=clear)
for value, name in ((record["cublas"]["tflops"], "cuBLAS"), (record["peak_tflops"], "all multipliers")):
    ax.axvline(value, color="black", linewidth=0.8)
    ax.text(value - 0.5, 0, name, ha="right", fontsize=8)
ax.invert_yaxis()
ax.set(
    xlabel="TFLOP/s",
    title=f"{record['m']} x {record['n']} x {record['k']} float32, {record['gpu']}, {record['date'][:10]}",
)
plt.show()
best = max(rows, key=lambda row: row["tflops"])
print(
    f"{best['step']}: {best['of_cublas']:.2f} of cuBLAS; {best['tflops'] / rows[0]['tflops']:.0f} times the naive product"
)

# %% [markdown]
# The largest steps are coalescing, the tile, the tile in registers, vectors, and two buffers. (No one reaches "all
# multipliers": that takes the highest clock, which a GPU at its power limit does not keep. And not every instruction can
# be an FMA.)
#
# <details><summary><b>Question.</b> Why are no tensor cores used here?</summary>
#
# Tensor cores are units of a multiprocessor that multiply small matrices by one instruction. They take float32 only after
# rounding it to TF32, which has 11 bits. That is another product. For float16 and bfloat16, use them.
# </details>
#
# <details><summary><b>Question.</b> Would 16 × 16 elements a thread be better still?</summary>
#
# It needs 256 registers for the sums alone, and 255 is the limit for a thread. 8 × 16 works, but is no gain: the last step tells.
# </details>
#
# ## What you have seen
#
# - An account for one warp and one k: clocks of FMA against wavefronts.
# - Registers are the innermost tile. What a warp's lanes share decides about wavefronts.
# - Transposing, padding, z-order: each for one line of the account.
# - Double buffering overlaps waiting with work, and saves a barrier.
#
# ## Exercise
#
# The course's exercise 24 is an SGEMM with tiles in shared memory: `normlab course check 24`. Before that, here: lanes
# in 8 × 4 instead of 4 × 8 (`tiling.of_warps(8, 4, lanes.lanes_in_rows(8))`, in place of the tiling of `warp_tile`).
# How many wavefronts of loads does a k of a warp take?

# %%
from normlab import course

wavefronts = None  # your answer

course.check(wavefronts, "tall_warp")

# %% [markdown]
# <details><summary><b>Solution.</b></summary>
#
# 12, as with 4 × 8. One of the two operands has its lanes in pairs, the other has not; the two have exchanged their
# parts.
#
# ```python
# from dataclasses import replace
# from functools import partial
#
# plan = partial(tiling.plan, "tall", tiling.of_warps(8, 4, lanes.lanes_in_rows(8)))
# tall, error = traced(replace(steps["warp_tile"], ways=(plan,)))
# wavefronts = tall.metrics["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"] / (WARPS * DEPTH)
# course.check(wavefronts, "tall_warp")
# ```
# </details>
#
# Next: [15. In PyTorch](15_pytorch.ipynb).
