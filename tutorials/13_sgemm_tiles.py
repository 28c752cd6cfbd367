# %% [markdown]
# # 13. The matrix product: from naive to shared tiles
#
# **Aim.** See a kernel that is bound by arithmetic and not by memory, and what has to happen before that becomes true:
# coalescing, and using what was loaded more than once.
#
# **Before.** Tutorials [1](01_threads.ipynb), [5](05_block.ipynb) and [12](12_speed.ipynb).
#
# **Time.** 30 minutes.

# %%
import matplotlib.pyplot as plt
import numpy as np

import normlab
from normlab import oracle
from normlab.bench import records
from normlab.engine import launch, use_gpu
from normlab.kernels import LADDERS, Product, roofline
from normlab.kernels.sgemm import step_0_naive, step_1_coalesced, step_2_shared_tile
from normlab.learn import lesson
from normlab.sim import sanitize, trace
from normlab.sim.tracing.pictures import draw_banks

lesson.begin()
f32 = np.float32

# %% [markdown]
# ## Why here?
#
# What comes after a norm is a linear layer: a matrix product. It is the counterpart to everything so far. C = A B, with
# A of shape (M, K) and B of shape (K, N):
#
# $$ C_{ij} = \sum_k A_{ik} B_{kj} $$
#
# SGEMM (Single-precision GEneral Matrix Multiply) is its name in BLAS, the old library of linear algebra: C = α A B + β
# C in float32.
#
# It does M N K multiplications and as many additions. It must move A, B and C once. For square matrices of size n that
# is 2n³ operations on 12n² bytes: n/6 operations a byte. It **grows** with n.

# %%
n = 2 ** np.arange(3, 14)
intensity = [roofline.product_operations(m, m, m) / roofline.product_bytes(m, m, m) for m in n.tolist()]
figure, ax = plt.subplots()
ax.loglog(n, intensity, "o-", label="matrix product, n x n")
ax.axhline(1, color="#c8401a", linestyle="--", label="LayerNorm, about")
ax.axhline(roofline.H200.ridge, color="black", linewidth=0.8, label="H200: above, arithmetic binds")
ax.set(xlabel="n", ylabel="operations a byte", title="How much work there is for each byte (computed)")
ax.legend()
plt.show()

# %% [markdown]
# From about n = 100 on (14 × 6 = 84, to be exact), the arithmetic should be what counts. That is a promise, not a fact: it
# holds only if each element comes from memory **once**, although it is used n times.
#
# `total += a * b` is one instruction: a fused multiply-add, **FMA**. A multiprocessor of an H200 can do
# 128 of them in each clock: four warps' worth. The question of this tutorial and the next is: *what keeps the
# multipliers waiting?*
#
# ## Naive
#
# A thread for each element of C. The loop is the formula:

# %%
print(lesson.source(step_0_naive.sgemm_naive))

# %% [markdown]
# (`SIDE` is 32. `blocks_in_rows` says which square of 32 × 32 of C a block has; `scaled_sum` applies α and β, which are
# those of BLAS here and no norm's.) Look at two lines: `row` comes
# from `threadIdx.x`, `column` from `threadIdx.y`. So the 32 lanes of a warp stand **below each other** in C. They read
# 32 rows of A.


# %%
def traced(step, m, n, k, seed=0):
    """A step's launch on random matrices, traced; and its result and operands."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(m, k)).astype(f32), rng.normal(size=(k, n)).astype(f32)
    output = np.full((m, n), np.nan, f32)
    found = []

    def launch_traced(kernel, grid, block, *arguments, shared_bytes=0):
        found.append(trace(kernel)[grid, block, 0, shared_bytes](*arguments))

    step.run(launch_traced, None, Product(f32(1), a, b, f32(0), None, output))
    return found[0], output, a, b


naive, output, a, b = traced(step_0_naive.STEP, 32, 32, 8)
print("largest error:", np.abs(output - a.astype(np.float64) @ b).max())
product_line = lesson.line(step_0_naive.sgemm_naive, "total += load(a")
_ = naive.draw_sectors(product_line, "ld", "a")

# %% [markdown]
# For each k: 32 sectors for A, each for 4 bytes; and one for B, which all lanes share. 33 sectors for 32 FMA.
#
# ## Coalesced
#
# Exchange the two lines. Now lanes stand **beside each other**: they share one element of A, and read 32 neighbours of
# B.

# %%
coalesced, *_ = traced(step_1_coalesced.STEP, 32, 32, 8)
_ = coalesced.draw_sectors(lesson.line(step_1_coalesced.sgemm_coalesced, "total += load(a"), "ld", "b")

# %%
naive.compare(coalesced)

# %% [markdown]
# 33 sectors became 5. One exchanged pair of lines. (Which of the two threads' indices runs along a warp? Always x.)
#
# ## How often is everything read?
#
# `trace` counts the loads of each element, by lanes:

# %%
for name in ("a", "b"):
    loads = coalesced.array(name).counted(stores=False)
    print(f"{name}: {loads.size} elements, each loaded {loads.min()} to {loads.max()} times")

# %% [markdown]
# Each 32 times here, since C has 32 rows and 32 columns. In general an element of A is loaded N times, once for each
# column of C, and one of B M times. Each FMA needs two loads from the memory system, 8 bytes for 2 operations. That is an
# intensity of 0.25 operations a byte, where 14 are needed. The caches give most of it a second time. But they are asked
# every time, and that is where the threads wait.
#
# ## Shared tiles
#
# A block computes 32 × 32 elements of C. For 32 values of k it needs a 32 × 32 **tile** of A and one of B. Load both
# into shared memory, once. Each element is then used by 32 threads.

# %%
figure, ax = plt.subplots(figsize=(7, 5), layout="constrained")
ax.axis("off")
ax.set(xlim=(-0.4, 8.6), ylim=(9.2, -0.6), aspect="equal")
for left, top, wide, tall, name in ((0, 4.6, 4, 4, "A"), (4.4, 0.2, 4, 4, "B"), (4.4, 4.6, 4, 4, "C")):
    ax.add_patch(plt.Rectangle((left, top), wide, tall, facecolor="#f7f8fa", edgecolor="grey"))
    ax.text(left + 0.15, top + 0.45, name, fontsize=13, weight="bold")
for step in range(4):
    shade = 0.95 - 0.2 * step
    ax.add_patch(plt.Rectangle((step, 6.6), 1, 1, facecolor="#c8401a", alpha=1 - shade + 0.15, edgecolor="white"))
    ax.add_patch(plt.Rectangle((6.4, 0.2 + step), 1, 1, facecolor="#1b4f8a", alpha=1 - shade + 0.15, edgecolor="white"))
    ax.text(step + 0.5, 7.1, str(step + 1), ha="center", va="center")
    ax.text(6.9, 0.7 + step, str(step + 1), ha="center", va="center")
ax.add_patch(plt.Rectangle((6.4, 6.6), 1, 1, facecolor="#7f5f7f", edgecolor="white"))
ax.text(6.9, 7.1, "block", ha="center", va="center", color="white")
ax.annotate("", xy=(4, 6.35), xytext=(0, 6.35), arrowprops={"arrowstyle": "->"})
ax.text(2, 6.2, "k", ha="center")
ax.annotate("", xy=(7.65, 4.2), xytext=(7.65, 0.2), arrowprops={"arrowstyle": "->"})
ax.text(7.85, 2.2, "k")
ax.set_title("A block goes along k, a tile of A and one of B at a time")
plt.show()
print(lesson.source(step_2_shared_tile.sgemm_shared_tile))

# %% [markdown]
# Two barriers, and each says what it orders: tiles must be complete before they are read, and must not be overwritten
# while a thread still reads. `element_or_zero` gives 0 outside of the matrices: zeros add nothing to a product, so the
# edges need no other care.

# %%
m = n = k = 64
tiled, output, a, b = traced(step_2_shared_tile.STEP, m, n, k)
straight, *_ = traced(step_1_coalesced.STEP, m, n, k)
counts = {
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": "load requests, global memory",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum": "wavefronts of shared loads",
    "normlab__barriers.sum": "barriers",
}
lesson.draw_counts({"coalesced": straight, "shared_tile": tiled}, counts)

# %% [markdown]
# Global loads: 32 times fewer requests for the same product. In their place stand loads from shared memory, which is
# near. Are there bank conflicts? `a_tile[y, k]` is the same word for all lanes of a warp; `b_tile[k, x]` are 32
# neighbours.

# %%
inner = lesson.line(step_2_shared_tile.sgemm_shared_tile, "total += load(a_tile")
figure, axes = plt.subplots(1, 2, figsize=(15, 6.4), layout="constrained")
for ax, name in zip(axes, ("a_tile", "b_tile"), strict=True):
    draw_banks(tiled.request(inner, "ld", name), ax)
plt.show()

# %% [markdown]
# A ring means: one word for several lanes, given to all at once. No conflicts.
#
# ### What a tile is worth
#
# A tile of T × T elements of C needs T elements of A and T of B for each k, and does T² FMA with them:
#
# $$ \frac{2 T^2 \text{ operations}}{4 \cdot 2T \text{ bytes}} = \frac{T}{4} \text{ operations a byte} $$
#
# The same formula holds at every level: a block's tile in shared memory (loaded from L2), a thread's tile in registers
# (loaded from shared memory).

# %%
side = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256])
figure, ax = plt.subplots()
ax.loglog(side, [roofline.tile_intensity(int(t), int(t)) for t in side], "o-")
ax.axhline(roofline.H200.ridge, color="black", linewidth=0.8)
ax.text(1, roofline.H200.ridge * 1.15, "H200's memory needs this much")
for t, text, place, side_of_it in (
    (1, "no tile", (20, -3), "left"),
    (32, "this step's block", (20, -20), "left"),
    (128, "the next tutorial's", (-20, 8), "right"),
):
    line = {"arrowstyle": "-", "color": "grey"}
    ax.annotate(text, (t, t / 4), place, textcoords="offset points", ha=side_of_it, arrowprops=line)
ax.set(xlabel="T", ylabel="operations a byte", title="A square tile (computed)", xticks=side, xticklabels=side)
ax.minorticks_off()
plt.show()

# %% [markdown]
# 32 gives 8 operations a byte. Better by far than 0.25, and still below 14. (L2 is faster than memory and helps.)
#
# ### What binds now?
#
# Count for one warp and one k: two loads from shared memory, one FMA. A multiprocessor can begin four FMA (of a warp)
# in each clock, but serves only **one** wavefront of shared memory. So one FMA takes a quarter of a clock, and its two
# wavefronts take two clocks: the multipliers are busy an eighth of the time, and wait for shared memory otherwise. A
# thread still reads two numbers for each FMA. That ratio does not depend on the block's tile at all.
#
# The cure is the same idea once more, one level up: a tile in each *thread's registers*.
#
# ### Measured
#
# What did an H200 make of the three? From the record of `normlab bench ladder sgemm`, 4096 × 4096 × 4096:

# %%
(record,) = records.load(["ladder_sgemm_4096_h200"])
print(f"{record['gpu']}, {record['date'][:10]}; all multipliers busy: {record['peak_tflops']:.0f} TFLOP/s")
for row in record["steps"][:3]:
    print(f"{row['step']:12} {row['tflops']:5.1f} TFLOP/s: the multipliers are busy {row['of_peak']:6.1%} of the time")
print(f"{'cuBLAS':12} {record['cublas']['tflops']:5.1f} TFLOP/s (NVIDIA's library)")

# %% [markdown]
# 33 sectors became 5, a factor of 6.6; and the speed went up by nearly as much. The tile made it three times faster again.
# And there it stands, close to an eighth. (Not a proof: the compiler loads four neighbours of A's row in one instruction,
# so shared memory alone would allow a fifth. The barriers and the loads of the tiles take the rest. An account says what
# binds at best, and a measurement what is.)
#
# ## Is it right?
#
# Each element of C is a chain of K fused additions in every step: so the bound is the same, and even the bits are.

# %%
rng = np.random.default_rng(1)
for m, n, k in ((1, 1, 1), (5, 33, 7), (33, 40, 70)):
    a, b, c = (rng.normal(size=shape).astype(f32) for shape in ((m, k), (k, n), (m, n)))
    results = [normlab.sgemm(a, b, c, alpha=0.5, beta=2.0, step=step.name) for step in LADDERS["sgemm"][:3]]
    truth, bound = oracle.product(a, b, c, 0.5, 2.0), oracle.product_bound(a, b, c, 0.5, 2.0)
    used = max(oracle.assert_within(result, truth, bound, "C") for result in results)
    same = all(np.array_equal(results[0], other) for other in results[1:])
    print(f"{m:3} x {n:3} x {k:3}: at most {used:.0%} of the bound; the same bits in all three: {same}")

# %%
a, b, output = rng.normal(size=(20, 40)).astype(f32), rng.normal(size=(40, 20)).astype(f32), np.empty((20, 20), f32)
print(sanitize(step_2_shared_tile.sgemm_shared_tile)[1, (32, 32)](f32(1), a, b, f32(0), None, output))

# %% [markdown]
# <details><summary><b>Question.</b> Leave out the second barrier. Which two accesses race?</summary>
#
# A quick warp begins the next turn and writes the next tiles, while a slow warp still reads the old ones. It may well
# go unnoticed: in GPU-Puzzles, a well-known collection, people have found that their product passes its test with and
# without that barrier.
# </details>
#
# <details><summary><b>Question.</b> Why 32 × 32 and not 64 × 64?</summary>
#
# A block has at most 1,024 threads, and here each thread has one element. Larger tiles need several elements for each
# thread: the next tutorial.
# </details>
#
# ## Here

# %%
size = 4096 if use_gpu() else 32
a, b, output = lesson.on_device(*(np.ones((size, size), f32) for _ in range(3)))
for step in LADDERS["sgemm"][:3]:
    took = lesson.timed(lambda step=step: step.run(launch, None, Product(f32(1), a, b, f32(0), None, output)))
    speed = f", {roofline.product_operations(size, size, size) / took.seconds / 1e12:.1f} TFLOP/s" if use_gpu() else ""
    print(f"{step.name:12} {took}{speed}")

# %% [markdown]
# ## What you have seen
#
# - A product has n/6 operations for each byte. Whether that is of use depends on how often each byte is loaded.
# - Lanes belong beside each other in C.
# - A tile of side T gives T/4 operations a byte, at each level of memory.
#
# ## Exercise
#
# The course's exercise 24: an SGEMM tile. `normlab course check 24` has matrices that are no multiple of the tile.
# Before that, here: count the sectors that `shared_tile` loads for m = n = k = 64 if A is stored by columns
# (`a.T.copy().T`). Which load suffers?

# %%
from normlab import course

sectors = None  # your answer

course.check(sectors, "sectors_by_columns")

# %% [markdown]
# <details><summary><b>Solution.</b></summary>
#
# 2,048 sectors become 9,216. The load of A suffers: the lanes of a warp stand beside each other in a row of A, and now
# their elements are a whole column apart, each in a sector of its own. B's load is as before.
#
# ```python
# a, b = np.random.default_rng(0).normal(size=(2, 64, 64)).astype(f32)
# found = []
# step_2_shared_tile.STEP.run(
#     lambda kernel, grid, block, *arguments, shared_bytes=0: found.append(
#         trace(kernel)[grid, block, 0, shared_bytes](*arguments)
#     ),
#     None,
#     Product(f32(1), a.T.copy().T, b, f32(0), None, np.empty((64, 64), f32)),
# )
# sectors = found[0].metrics["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"]
# course.check(sectors, "sectors_by_columns")
# ```
# </details>
#
# Next: [14. Registers and double buffers](14_sgemm_registers.ipynb).
