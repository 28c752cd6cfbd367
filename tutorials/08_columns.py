# %% [markdown]
# # 8. Down the columns: grad_weight and grad_bias
#
# **Aim.** Add up the columns of a matrix that lies in memory row by row, quickly and with the same bits in every run:
# strided loads, a padded tile, and partial sums in two kernels.
#
# **Before.** [Tutorial 5](05_block.ipynb): shared memory and banks. [Tutorial 7](07_backward.ipynb): what dy and x̂
# are.
#
# **Time.** 35 minutes.

# %%
import matplotlib.pyplot as plt
import numpy as np

from normlab import oracle
from normlab.engine import cast, cuda, float32, launch, load, store, use_gpu, using
from normlab.kernels.backward import step_1_apex
from normlab.learn import lesson
from normlab.sim import sanitize, trace

lesson.begin()
f32 = np.float32

# %% [markdown]
# ## The task
#
# $$ \frac{\partial L}{\partial \beta_j} = \sum_{i} dy_{ij}, \qquad \frac{\partial L}{\partial \gamma_j} = \sum_{i} dy_{ij}\,
# \hat x_{ij} $$
#
# Sums over the **rows** i, for each column j. A model has many rows (all tokens of a batch: 10,000 or more) and
# moderately many columns (768 to 8,192). The matrix lies row by row: neighbours in memory are neighbours in a row. Let
# us look at the simpler sum, of dy alone, and try the obvious ways first.
#
# ### A warp down a column
#
# A block per column, its threads go down. In a request, the 32 lanes stand in 32 rows.


# %%
@cuda.jit
def warp_down_a_column(dy, partial):
    column, lane = cuda.blockIdx.x, cuda.threadIdx.x
    total = cast(0, partial)
    row = lane
    while row < dy.shape[0]:
        total += load(dy, (row, column))
        row += 32
    store(partial, (lane, column), total)


dy = np.random.default_rng(0).normal(size=(64, 64)).astype(f32)
partial = np.zeros((32, 64), f32)
down = trace(warp_down_a_column)[64, 32](dy, partial)
_ = down.draw_sectors(lesson.line(warp_down_a_column, "load(dy"), "ld")

# %% [markdown]
# 32 sectors, 4 bytes used of each: seven eighths of what moves is wasted. You know that from tutorial 1.
#
# ### A thread per column
#
# Now lanes stand side by side in a row, and the warp walks down together. Perfectly coalesced.


# %%
@cuda.jit
def thread_per_column(dy, total):
    column = cuda.grid(1)
    if column < dy.shape[1]:
        value = cast(0, total)
        for row in range(dy.shape[0]):
            value += load(dy, (row, column))
        store(total, column, value)


total = np.zeros(64, f32)
across = trace(thread_per_column)[2, 32](dy, total)
down.compare(across)

# %% [markdown]
# What is wrong with it? There are only n2 threads. An H200 has room for 2,048 threads on each of its 132 multiprocessors,
# 270,336 in all. While some wait for memory, others ask for more; so it needs a good part of them to keep its memory
# busy:

# %%
n2 = np.array([768, 1024, 2048, 4096, 8192])
figure, ax = plt.subplots(figsize=(7, 2.8))
ax.bar([str(n) for n in n2], 100 * n2 / (132 * 2048), color="#1b4f8a")
ax.set(
    xlabel="columns",
    ylabel="% of an H200's threads",
    ylim=(0, 4),
    title="A thread per column leaves most of the GPU idle",
)
plt.show()

# %% [markdown]
# And each thread adds n1 numbers in one chain: slow, and the error grows like n1 u (tutorial 3).
#
# ### Atomics
#
# Many blocks could share a column, if they add to the same place. `cuda.atomic.add(array, index, value)` does that
# without a race: the hardware lets one thread after the other add. The first step of the backward ladder does so. It
# has two flaws. All blocks queue for the same n2 addresses. And the block that comes first adds first, so the *last
# digits* change from run to run. In the kernel below, 16 blocks share 32 columns, each with a sixteenth of the rows. So
# the grid has two dimensions: `blockIdx.x` says which columns, `blockIdx.y` which rows, and `gridDim.y` is the number
# of blocks along y, 16. Let us run it in the simulator in different orders. (`using("simulator", schedule=…)` does what
# `simulate` did in tutorial 5, for all launches inside.)


# %%
@cuda.jit
def atomic_sums(dy, total):
    """A block of 32 threads has 32 columns of one part of the rows. Grid: (n2 / 32, parts)."""
    column = cuda.grid(1)
    rows = -(-dy.shape[0] // cuda.gridDim.y)  # of a part: n1 / parts, rounded up
    first = cuda.blockIdx.y * rows
    if column < dy.shape[1]:
        value = float32(0)
        for row in range(first, min(first + rows, dy.shape[0])):
            value += dy[row, column]
        cuda.atomic.add(total, column, value)


ORDERS = ("forward", "reverse", 1, 2)
dy = np.random.default_rng(1).normal(size=(100, 40)).astype(f32)


def columns_that_differ(sums):
    """Run `sums`, which returns an array, in several orders of threads and blocks; count elements whose bits differ."""
    results = []
    for order in ORDERS:
        with using("simulator", schedule=order):
            results.append(sums())
    return sum(len({float(value) for value in column}) > 1 for column in zip(*results, strict=True))


def sums_by_atomics():
    total = np.zeros(40, f32)
    launch(atomic_sums, (2, 16), 32, dy, total)
    return total


print("by atomics:", columns_that_differ(sums_by_atomics), "of 40 sums depend on the order")

# %% [markdown]
# Training twice with the same seed and getting different losses makes bugs hard to find. So apex does without atomics,
# and so do all other steps of the ladder.
#
# ## Partial sums in two kernels
#
# - **First kernel.** Cut the rows into 16 **parts**. A block takes 32 columns and one part: n2/32 × 16 blocks. Each
#   leaves 32 partial sums. Together they are a small matrix (16, n2).
# - **Second kernel.** It adds up the 16 rows of that matrix.

# %%
figure, ax = plt.subplots(figsize=(9, 3.2), layout="constrained")
for left, height, name in ((0, 1, "dy: n1 rows"), (6, 0.35, "partial sums: 16 rows"), (12, 0.1, "grad_bias: 1 row")):
    parts = 16 if left < 12 else 1
    for part in range(parts):
        for strip in range(4):
            colour = plt.cm.tab20c(4 * strip + part % 4)
            place = left + strip, (1 - height) / 2 + height * part / parts
            ax.add_patch(plt.Rectangle(place, 1, height / parts, facecolor=colour, edgecolor="white", linewidth=0.4))
    ax.text(left + 2, (1 - height) / 2 - 0.06, name, ha="center", va="bottom")
for left, name in ((5, "first\nkernel"), (11, "second\nkernel")):
    ax.annotate("", (left + 0.7, 0.5), (left - 0.7, 0.5), arrowprops={"arrowstyle": "->"})
    ax.text(left, 0.45, name, ha="center", va="bottom", fontsize=8)
ax.set(xlim=(-0.5, 16.5), ylim=(1.05, -0.1), title="A cell on the left is a block: 32 columns of one part")
ax.axis("off")
plt.show()

# %% [markdown]
# Both kernels take few lines. The first one is `atomic_sums` with another last line:


# %%
@cuda.jit
def partial_sums(dy, partial):
    """A block of 32 threads has 32 columns of one part of the rows. partial: (parts, n2)."""
    column = cuda.grid(1)
    part = cuda.blockIdx.y
    rows = -(-dy.shape[0] // partial.shape[0])
    if column < dy.shape[1]:
        value = float32(0)
        for row in range(part * rows, min((part + 1) * rows, dy.shape[0])):
            value += dy[row, column]
        partial[part, column] = value  # no other thread writes here


@cuda.jit
def final_sums(partial, total):
    """A thread for each column."""
    column = cuda.grid(1)
    if column < total.shape[0]:
        value = float32(0)
        for part in range(partial.shape[0]):
            value += partial[part, column]
        total[column] = value


def column_sums(dy):
    """The sums down the columns of dy, and the partial sums."""
    n2 = dy.shape[1]
    partial, total = np.full((16, n2), np.nan, f32), np.full(n2, np.nan, f32)
    blocks = -(-n2 // 32)
    launch(partial_sums, (blocks, 16), 32, dy, partial)
    launch(final_sums, blocks, 32, partial, total)
    return total, partial


print("in two kernels:", columns_that_differ(lambda: column_sums(dy)[0]), "of 40 sums depend on the order")
print("largest error:", np.abs(column_sums(dy)[0] - dy.sum(axis=0, dtype=np.float64)).max())

# %% [markdown]
# The 16 is fixed, and no two blocks write to the same place. So the order of additions depends on the shape alone, and
# the bits of the result do not depend on luck.
#
# grad_bias is these sums. grad_weight is the same sums of dy x̂. Both, for a LayerNorm of 96 rows:

# %%
n1, n2 = 96, 64
rng = np.random.default_rng(2)
x, dy = rng.normal(size=(2, n1, n2)).astype(f32)
_, mean, invvar = oracle.layer_norm(x, n2)
xhat = ((x - mean[:, None]) * invvar[:, None]).astype(f32)
grad_bias, parts_bias = column_sums(dy)
grad_weight, parts_weight = column_sums(dy * xhat)
truth = oracle.layer_norm_backward(dy, x, n2, np.ones(n2, f32), np.zeros(n2, f32))
print("largest errors:", np.abs(grad_weight - truth.grad_weight).max(), np.abs(grad_bias - truth.grad_bias).max())

figure, axes = plt.subplots(1, 2, figsize=(10, 3), layout="constrained", sharey=True)
for ax, parts, name in zip(axes, (parts_weight, parts_bias), ("grad_weight", "grad_bias"), strict=True):
    image = ax.imshow(parts, cmap="RdBu", aspect="auto")
    ax.set(title=f"partial sums of {name}", xlabel="column")
    figure.colorbar(image, ax=ax)
axes[0].set_ylabel("part")
plt.show()

# %% [markdown]
# Each sum of 96 rows is now a chain of 6 additions in the first kernel and of 16 in the second.
#
# ## apex's kernel: a tile
#
# There are 16 times as many threads now as columns: 65,536 for 4,096 columns, where an H200 has room for 270,336. apex
# has four times as many again: four warps to a block. They share the rows of the part, and join their sums in shared
# memory.
#
# ### A tile of 16 × 32
#
# The 32 × 4 threads of a block take a **tile** of 16 rows × 32 columns at a time: 512 elements, four for each thread.
# Thread (x, y) takes four *neighbouring* elements of one row. Eight threads cover a tile's row:

# %%
rows, columns = np.divmod(np.arange(16 * 32), 32)
x_thread, y_thread = columns // 4 + 8 * (rows % 4), rows // 4
figure, ax = plt.subplots(figsize=(9, 3.6), layout="constrained")
ax.pcolormesh(np.arange(33), np.arange(17), y_thread.reshape(16, 32), cmap="Blues", vmin=-1, vmax=8, edgecolor="white")
for row in range(16):
    for column in range(0, 32, 4):
        ax.text(column + 2, row + 0.5, f"{x_thread[row * 32 + column]}", ha="center", va="center", fontsize=7)
ax.set(
    xlabel="column of the tile",
    ylabel="row of the tile",
    title="threadIdx.x (number) and threadIdx.y (colour) of each element",
)
ax.invert_yaxis()
plt.show()

# %% [markdown]
# So warp y covers rows 4y to 4y + 3. Here is the idea as a kernel, for the sums of dy alone, and for shapes that fit:


# %%
@cuda.jit
def tile_sums(dy, partial):
    """A block of (32, 4) threads has 32 columns of one part. n1 is a multiple of 16 parts, n2 of 32."""
    tile = cuda.shared.array((16, 33), float32)  # 33: see below
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    rows = dy.shape[0] // partial.shape[0]
    first_row, first_column = cuda.blockIdx.y * rows, cuda.blockIdx.x * 32

    # 1. Fold all rows of the part into one tile. The four places are the thread's own, so this needs no barrier.
    row, column = 4 * y + x // 8, 4 * (x % 8)
    for k in range(4):
        tile[row, column + k] = 0
    for start in range(first_row, first_row + rows, 16):
        for k in range(4):
            tile[row, column + k] += dy[start + row, first_column + column + k]
    cuda.syncthreads()  # the whole tile is there before its columns are added up

    # 2. Add up columns: thread (x, y) has rows y, y + 4, y + 8, y + 12 of column x.
    tile[y, x] = tile[y, x] + tile[y + 4, x] + tile[y + 8, x] + tile[y + 12, x]

    # 3. Join the four sums of each column by halving.
    cuda.syncthreads()  # the sums of rows 2 and 3 are there before rows 0 and 1 add them
    if y < 2:
        tile[y, x] += tile[y + 2, x]
    cuda.syncthreads()  # the sum of row 1 is there before row 0 adds it
    if y == 0:
        partial[cuda.blockIdx.y, first_column + x] = tile[0, x] + tile[1, x]


dy = rng.normal(size=(512, n2)).astype(f32)
partial = np.full((16, n2), np.nan, f32)
counted = trace(tile_sums)[(n2 // 32, 16), (32, 4)](dy, partial)
print("largest error:", np.abs(partial.sum(axis=0) - dy.sum(axis=0, dtype=np.float64)).max())
print(sanitize(tile_sums)[(n2 // 32, 16), (32, 4)](dy, partial))

# %% [markdown]
# Three phases: rows are read as they lie in memory, then the tile is read down its columns, then four warps become one.
# In phase 2 a thread writes `tile[y, x]`, which no other thread reads in that phase: so there is no barrier before it.
#
# ### Why a row has 33 words
#
# Look at one store. The 32 lanes of a warp write into four rows of the tile, eight lanes in each row, and every *fourth*
# column. Were a row 32 words long, the four rows would fall on the same eight banks. Here are both lengths, in a small
# kernel that does nothing else:


# %%
@cuda.jit
def store_tile(stride, y):
    tile = cuda.shared.array(16 * 40, float32)  # room for rows of up to 40 words
    thread = cuda.threadIdx.x
    row, column = thread // 8, 4 * (thread % 8)
    for k in range(4):
        tile[row * stride + column + k] = thread
    cuda.syncthreads()  # the tile is complete before it is read
    y[thread] = tile[row * stride + column]


y = np.zeros(128, f32)
storing = lesson.line(store_tile, "] = thread")
_ = trace(store_tile)[1, 128](32, y).draw_banks(storing, "st")

# %%
_ = trace(store_tile)[1, 128](33, y).draw_banks(storing, "st")

# %% [markdown]
# With 32, four wavefronts; with 33, each row is shifted by one bank, and 8 lanes × 4 rows hit 32 different banks.
#
# <details><summary><b>Question.</b> When the rows are added up, thread (x, y) reads column x of a row. Conflicts, with 32 or
# 33?</summary>
#
# None, with either: the lanes of a warp read 32 neighbouring words of one row. It is the *store* that needs the
# padding, because there each thread has four neighbouring elements.
# </details>
#
# ### Counted
#
# What `trace` counts in `tile_sums`:

# %%
metrics = counted.metrics
print("bank conflicts of shared stores:", metrics["l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum"])
print("bank conflicts of shared loads: ", metrics["l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"])
print("barriers a block:", metrics["normlab__barriers.sum"] / counted.blocks)
_ = counted.draw_sectors(lesson.line(tile_sums, "+= dy[start"), "ld", "dy")

# %% [markdown]
# A request touches 16 sectors, and uses two of the eight elements in each: a thread's four neighbours are loaded one by
# one, as in the forward. All of a sector gets used in the end, by the same threads' next loads.
#
# ### The ladder's kernel, part by part
#
# `step_1_apex` has apex's kernel. It is `tile_sums` with three things more. It keeps two tiles, one for dy and one for
# dy x̂. It takes any shape: beyond the matrix it adds zeros. And γ, β and the statistics come along as arguments. Its
# source has the same three phases. The first:

# %%
phases = lesson.source(step_1_apex.build_partial_sums(float32, False)).split("\n\n")
print(phases[0])

# %% [markdown]
# Two stages do the work of the first phase's inner loop, under apex's names: `load_write_strided` *writes* the thread's
# four elements of the first tile, and `load_add_strided` *adds* those of all further tiles. (`dtype` is what `build` was
# given; `ROWS` is 16, and `TILE_STRIDE` 33.) Next come the second phase and the halving of the third. `WARPS` is 4, and
# the loop over `half` has the two rounds that `tile_sums` writes out:

# %%
print(phases[1])

# %% [markdown]
# And the end. The first warp writes row p of the partial sums. (`part_weight` is None if there is no γ.)

# %%
print(phases[2])

# %% [markdown]
# The parts of this kernel have whole tiles: with 96 rows, six parts have 16 rows each, and ten have none and write
# zeros. That is a price of the fixed number 16. With 10,000 rows it does not matter.
#
# ## How far off may it be?
#
# Follow one column through the ladder's kernels. A thread adds `rows_per_part / 16` tiles in a chain, then 4 rows of the
# tile. Then there are two levels of halving. The second kernel adds the 16 parts: two in a chain, and the rest by three
# levels of halving. For 10,000 rows that is 40 + 4 + 2 = 46 terms in chains, where a thread per column would have
# 10,000. The oracle takes these numbers from the step:

# %%
for n1 in (96, 10_000, 1_000_000):
    chains = step_1_apex.STEP.column_chains(n1, 64)
    print(
        f"n1 = {n1:9,}: a chain of {chains.terms:5,} additions, then {chains.merges} levels; thread per column: {n1:,}"
    )

# %% [markdown]
# ## What is left to be done
#
# These kernels read dy and x once for the column sums. The kernel for `grad_input` (tutorial 7) reads them, too, and
# twice, and writes its result. So 7 arrays' worth of traffic, where 3 would do. The next step of the ladder makes it one
# kernel: a block goes through many rows, computes `grad_input`, and keeps the columns' sums in **registers** all the
# while. In the end each block leaves one row of partial sums. The step after that, `pipelined`, also loads rows ahead:

# %%
for name, reached in lesson.ladder("backward").items():
    print(f"{name:15} {reached:.2f} of a copy's speed in bfloat16, on an H200")

# %% [markdown]
# ## Here
#
# The two obvious ways from the beginning:

# %%
n1, n2 = (16384, 4096) if use_gpu() else (64, 64)
dy, total = lesson.on_device(np.ones((n1, n2), f32), np.zeros(n2, f32))
(partial,) = lesson.on_device(np.zeros((32, n2), f32))
print("warp down a column:", lesson.timed(lambda: launch(warp_down_a_column, n2, 32, dy, partial)))
print("thread per column: ", lesson.timed(lambda: launch(thread_per_column, n2 // 32, 32, dy, total)))

# %% [markdown]
# <details><summary><b>Question.</b> Why are the partial sums kept in float32, even if weight and dy are bfloat16?</summary>
#
# bfloat16 keeps 8 bits of a number's digits, float32 24. Sixteen parts rounded to 8 bits each would throw away what the
# float32 sums had kept. It is better to round once, at the very end.
# </details>
#
# <details><summary><b>Question.</b> In apex, the second kernel has a barrier in its loop, and the last block may have columns beyond n2. Why must
# those threads not return early?</summary>
#
# All threads of a block must reach a barrier. So the guard is around the loads and the final store, and not around the
# loop. (apex has it around the loop.)
# </details>
#
# ## What you have seen
#
# - Down the columns: lanes walk side by side, not one below the other. That alone gives too few threads; so cut the rows
#   into parts, too.
# - Fixed parts and no atomics: the same bits in every run.
# - A tile in shared memory turns loads along rows into sums down columns; padding keeps its banks apart.
#
# ## Exercise
#
# The course's exercise 17 is a padded tile, exercise 18 grad_weight in two kernels: `normlab course check 18`.
#
# Not every task can do without atomics. Exercise 28 counts a **histogram**, which says how often each number stands in
# an array. Its bins are **privatised**: each block counts in a copy of its own, in shared memory, and adds the copy to
# the result in the end. Exercise 29 is a **segmented sum**: the array is cut into segments of different lengths, and
# each segment gets a sum.
#
# Before that, here: which tile strides between 32 and 40 are free of conflicts? Count with `store_tile`, then explain.

# %%
from normlab import course

strides = []  # your answer

course.check(strides, "tile_strides")

# %% [markdown]
# <details><summary><b>Solution.</b></summary>
#
# The odd ones. Neighbouring rows lie `stride` words apart, so lanes in one column meet the banks 0, stride, 2 stride,
# …, all modulo 32. These are different banks if stride and 32 have no common divisor, and 32 has the divisor 2 only.
#
# ```python
# conflicts = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum"
# strides = [stride for stride in range(32, 41) if trace(store_tile)[1, 128](stride, y).metrics[conflicts] == 0]
# course.check(strides, "tile_strides")
# ```
# </details>
#
# Next: [9. Saving the output](09_recompute.ipynb).
