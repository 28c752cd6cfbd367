# %% [markdown]
# # 5. From warps to a block: shared memory, barriers, banks
#
# **Aim.** Join the results of several warps through shared memory. Place barriers where they are needed, and know why
# each is. See what a bank conflict is, and cure it with one unused column.
#
# **Before.** [Tutorial 4](04_shuffles.ipynb): sums within a warp.
#
# **Time.** 35 minutes.

# %%
import matplotlib.pyplot as plt
import numpy as np

from normlab.engine import cuda, float32, launch, use_gpu
from normlab.learn import lesson
from normlab.sim import sanitize, simulate, trace
from normlab.stages import block_sum, warp_sum_butterfly

lesson.begin()
f32 = np.float32

# %% [markdown]
# ## First, watch a block
#
# Two warps exchange values through memory that both can reach. Click on the page, and press → until you come to the line
# `cuda.syncthreads()`. Warp 0 stands there and waits until warp 1 has come, too. Then both go on.


# %%
@cuda.jit
def exchange(x, y):
    buffer = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    buffer[i] = x[i]
    cuda.syncthreads()
    other = buffer[63 - i]
    y[i] = other


x, y = np.arange(64, dtype=f32), np.zeros(64, f32)
trace(exchange, play=0)[1, 64](x, y).play()

# %% [markdown]
# Watch the variable `other`: the lanes of warp 0 get what warp 1 has written, backwards. This tutorial says what would
# happen without that line, and why shared memory is drawn with 32 columns.
#
# ## Memory that a block shares
#
# Shuffles work within one warp. A block has several warps; in apex's kernels it has four. To join their results, they
# need a place where one writes and another reads. Global memory would do, but it is slow. Each multiprocessor has some
# fast memory of its own (228 KiB on an H200), and a block can have a piece of it: **shared memory**.
#
# > `buffer = cuda.shared.array(shape, dtype)`
#
# All threads of the block see the same `buffer`. Other blocks have their own. It lives as long as the block, and begins
# with garbage. `shape` must be a constant.
#
# ## A race
#
# Let a block of 64 threads reverse 64 values. Each thread writes one value into shared memory and reads another.


# %%
@cuda.jit
def reverse(x, y):
    buffer = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    buffer[i] = x[i]
    y[i] = buffer[63 - i]


x = np.arange(64, dtype=f32)
for schedule in ("forward", "reverse", 7):
    y = np.full(64, -1, f32)
    simulate(reverse, schedule=schedule)[1, 64](x, y)
    right = np.array_equal(y, x[::-1])
    print(f"threads run in order {schedule!r:10} right: {right}   y[:5] = {y[:5]}")

# %% [markdown]
# `simulate` runs a kernel in the simulator in an order that you choose: forward, backward, or shuffled by a seed. The
# result depends on the order. (An element that no thread has written reads as NaN here: the simulator fills fresh
# memory with it.)
#
# Thread 0 reads `buffer[63]`, which thread 63 writes. Nothing says that thread 63 is there first. Two accesses to the
# same place, at least one of them a write, and nothing that orders them: that is a **race**. `sanitize` finds races
# from one run, because it looks for missing order and not for wrong results.

# %%
print(sanitize(reverse)[1, 64](x, np.zeros(64, f32)))

# %% [markdown]
# The cure is a **barrier**. `cuda.syncthreads()` lets no thread go on until all threads of the block have arrived. And
# whatever they wrote before is visible to all after it.


# %%
@cuda.jit
def reverse_in_order(x, y):
    buffer = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    buffer[i] = x[i]
    cuda.syncthreads()  # every value is in shared memory before any thread reads it
    y[i] = buffer[63 - i]


y = np.zeros(64, f32)
print(sanitize(reverse_in_order)[1, 64](x, y))
print(np.array_equal(y, x[::-1]))

# %% [markdown]
# The comment is a habit in normlab: beside a barrier stands what it orders. If you cannot say that, the barrier is in the
# wrong place, or not needed.
#
# **All threads must come.** A barrier in a branch that only some threads take is an error:


# %%
@cuda.jit
def barrier_in_a_branch(x, y):
    buffer = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    if i < 40:
        buffer[i] = x[i]
        cuda.syncthreads()
        y[i] = buffer[39 - i]


print(sanitize(barrier_in_a_branch)[1, 64](x, np.zeros(64, f32)))

# %% [markdown]
# ## From warps to a block
#
# Each warp has its sum, by shuffles. Now halve the number of warps, round by round: the upper half writes to shared
# memory, the lower half reads and adds. Four warps need two rounds. In the end warp 0 writes the result where all can
# read it. The stage does two sums at once, because the barriers cost the same:

# %%
from normlab.stages import block_sums

print(lesson.source(block_sums))

# %% [markdown]
# (`half = (active + 1) >> 1` is half, rounded up, so that three or five warps work, too. `block_sum` is the same for one
# sum. It uses the same buffer, two rows with a place for each warp.)


# %%
@cuda.jit
def sum_of_block(x, total):
    buffer = cuda.shared.array((2, 4), float32)
    i = cuda.threadIdx.x
    value = block_sum(warp_sum_butterfly(x[i]), buffer)
    total[i] = value


x, total = np.random.default_rng(0).uniform(size=128).astype(f32), np.zeros(128, f32)
counted = trace(sum_of_block)[1, 128](x, total)
print("all threads have", set(total.tolist()), " NumPy:", x.sum())
_ = counted.draw_tree(to=0)

# %% [markdown]
# Drawn is what leads to thread 0. Time runs down. First come five shuffles in each warp (dashed). Then warps 2 and 3 give
# their sums to warps 0 and 1, and warp 1 gives its own to warp 0, through shared memory (solid), with barriers (thick).
# After that, and not in the picture, thread 0 writes the result into shared memory, and all threads read it.
#
# ### Which barrier for what
#
# A round has two barriers. The first one is easy to explain: what the upper half writes must be there before the lower
# half reads. Is the second one needed? Let us leave it out and ask. (In the kernel, `& 31` is the remainder by 32: the
# lane. `>> 5` divides by 32: the warp.)


# %%
@cuda.jit
def sum_with_one_barrier_a_round(x, total):
    buffer = cuda.shared.array(4, float32)
    lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
    value = warp_sum_butterfly(x[cuda.threadIdx.x])
    active = 4
    while active > 1:
        half = active >> 1
        if lane == 0 and half <= warp < active:
            buffer[warp - half] = value
        cuda.syncthreads()  # the upper half's sums are in shared memory before the lower half reads them
        if lane == 0 and warp < half:
            value += buffer[warp]
        active = half
    if cuda.threadIdx.x == 0:
        total[0] = value


total = np.zeros(1, f32)
print(sanitize(sum_with_one_barrier_a_round)[1, 128](x, total))
print("right all the same, this time:", np.isclose(total[0], x.sum()))

# %% [markdown]
# In round one, warp 2 writes `buffer[0]` and warp 0 reads it. In round two, warp 1 writes `buffer[0]`. No barrier is
# between that read and that write. If warp 1 is quick and warp 0 slow, warp 0 reads the wrong value. Here it went well.
# On a GPU it may go well a million times.
#
# That is what makes such mistakes bad: **a right result proves nothing about a race.**
#
# <details><summary><b>Question.</b> Could one do with a single barrier a round, if each round had its own piece of
# <code>buffer</code>?</summary>
#
# Yes. Then no place is written twice, and the second barrier has nothing to order. It costs a little shared memory. The
# fast steps of the ladder go further: every warp writes its result once, one barrier, and every warp adds up all of
# them.
# </details>
#
# <details><summary><b>Question.</b> The stage begins with a barrier. What for?</summary>
#
# A kernel may call it in a loop over rows, with the same buffer. A thread that is still reading the last row's result
# would find the next row's numbers there.
# </details>
#
# ### What a block costs
#
# More warps, more rounds, more barriers:

# %%
warps = [1, 2, 3, 4, 8, 16, 32]


@cuda.jit
def sum_of_any_block(x, total):
    buffer = cuda.shared.array((2, 32), float32)
    i = cuda.threadIdx.x
    total[i] = block_sum(warp_sum_butterfly(x[i]), buffer)


found = [trace(sum_of_any_block)[1, 32 * w](np.ones(32 * w, f32), np.zeros(32 * w, f32)).metrics for w in warps]
figure, ax = plt.subplots(figsize=(7, 3))
ax.plot(warps, [one["normlab__barriers.sum"] for one in found], "s-", label="barriers of the block")
ax.plot(
    warps,
    [one["normlab__shuffles.sum"] / w for one, w in zip(found, warps, strict=True)],
    "o-",
    label="shuffles a warp",
)
ax.set(
    xscale="log", xticks=warps, xticklabels=warps, xlabel="warps in the block", ylim=(0, 15), title="One sum (counted)"
)
ax.minorticks_off()
ax.legend()
plt.show()

# %% [markdown]
# ## Banks
#
# Shared memory is cut into 32 **banks**. The first 4 bytes belong to bank 0, the next 4 to bank 1, and so on; after
# bank 31 comes bank 0 again:
#
# > bank = (address / 4) mod 32
#
# In one pass, each bank gives one 4-byte word. If 32 lanes want words from 32 different banks, one pass is enough. If
# two lanes want **different words of the same bank**, that takes two passes: a **bank conflict**. (The same word for
# several lanes is fine; it is broadcast.) Nsight Compute calls a pass a **wavefront**.
#
# Transposing a tile (a small piece of a matrix) shows the worst case. 32 × 32 threads write rows and read columns. Such a
# block has two indices, `threadIdx.x` and `threadIdx.y`. Its threads are numbered with x first, so a warp is the 32
# threads with the same y.


# %%
@cuda.jit
def transpose(x, y):
    tile = cuda.shared.array((32, 32), float32)
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    tile[j, i] = x[j, i]
    cuda.syncthreads()  # the whole tile is there before its columns are read
    y[j, i] = tile[i, j]


x, y = np.arange(1024, dtype=f32).reshape(32, 32), np.zeros((32, 32), f32)
unpadded = trace(transpose)[1, (32, 32)](x, y)
print("right:", np.array_equal(y, x.T))
_ = unpadded.draw_banks(lesson.line(transpose, "tile[i, j]"))

# %% [markdown]
# The picture is for one warp: row = lane, column = bank. All lanes want bank 0, and have to queue. The number is each
# lane's turn: 32 wavefronts.
#
# Why? A row of the tile has 32 words. Going down a column means steps of 32 words, so the bank never changes. Make the
# rows **33** words long, and a step down moves one bank on:


# %%
@cuda.jit
def transpose_padded(x, y):
    tile = cuda.shared.array((32, 33), float32)  # a column more than is used
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    tile[j, i] = x[j, i]
    cuda.syncthreads()  # the whole tile is there before its columns are read
    y[j, i] = tile[i, j]


padded = trace(transpose_padded)[1, (32, 32)](x, y)
print("right:", np.array_equal(y, x.T))
_ = padded.draw_banks(lesson.line(transpose_padded, "tile[i, j]"))

# %%
unpadded.compare(padded, labels=("32 words a row", "33 words a row"))

# %% [markdown]
# 128 bytes of padding, and 1,024 wavefronts of shared loads become 32 (32 warps, each 32 or 1). And global memory? Both
# kernels read and write whole rows there: that is why one goes through a tile in the first place.
#
# ### How many, in general?
#
# Let lane k read word s·k. With s = 8, lane 4 wants word 32, which is in bank 0 again, as for lanes 0, 8, 12, … : every
# fourth lane, so 8 lanes, and 8 wavefronts. In general, lanes k and k' meet in a bank if s(k − k') is a multiple of 32,
# so if k − k' is a multiple of 32 / gcd(s, 32). (gcd is the greatest common divisor.) So gcd(s, 32) lanes share each
# bank that is used: that many wavefronts. Odd strides have gcd 1.


# %%
@cuda.jit
def read_strided(stride, y):
    buffer = cuda.shared.array(2048, float32)
    lane = cuda.threadIdx.x
    for k in range(64):
        buffer[32 * k + lane] = 0
    cuda.syncthreads()  # all of it is written before it is read
    y[lane] = buffer[stride * lane]


strides = np.arange(1, 65)
reading = lesson.line(read_strided, "stride * lane]")
counted = [trace(read_strided)[1, 32](stride, np.zeros(32, f32)).request(reading, "ld", "buffer") for stride in strides]
figure, ax = plt.subplots(figsize=(9, 3))
ax.bar(strides, [one.wavefronts for one in counted], color="#1b4f8a", label="counted")
ax.plot(strides, np.gcd(strides, 32), "o", color="#c8401a", markersize=3, label="gcd(stride, 32)")
ax.set(xlabel="stride in words", ylabel="wavefronts", title="A warp reads 32 words of shared memory")
ax.legend()
plt.show()

# %% [markdown]
# <details><summary><b>Question.</b> All lanes read <code>buffer[5]</code>. How many wavefronts?</summary>
#
# One. It is the same word for all.
# </details>
#
# <details><summary><b>Question.</b> A tile of float64 (8 bytes) with rows of 33 elements. Any conflicts down a column?</summary>
#
# A warp that wants 8 bytes a lane is served in two halves of 16 lanes. A step down a column is 66 words, 2 mod 32: 16
# lanes × 2 words touch 32 different banks. No conflict.
# </details>
#
# ## Here
#
# The two transposes, in as many blocks as keep a GPU busy. (All of them do the same tile, and write the same values.)

# %%
blocks = 65536 if use_gpu() else 1
x, y = lesson.on_device(np.ones((32, 32), f32), np.ones((32, 32), f32))
for kernel in (transpose, transpose_padded):
    print(f"{kernel.__name__:17}", lesson.timed(lambda kernel=kernel: launch(kernel, blocks, (32, 32), x, y)))

# %% [markdown]
# ## What you have seen
#
# - Shared memory belongs to a block. Between a write by one thread and a read by another there must be a barrier, and also
#   between a read and the next write.
# - A right result does not prove that there is no race. A tool that checks order does.
# - Different words of one bank queue up. An odd row length keeps columns free of that.
#
# ## Exercise
#
# The course's exercise 5 is a warm-up: sums of three neighbours, through shared memory. Exercise 12 is a block sum
# with one barrier too few, to be repaired: `normlab course check 12`. Exercise 20 is another kernel with races, and
# exercise 17 a tile without bank conflicts.
#
# Shuffles, shared memory and barriers are enough for more than norms. A **scan** is a running sum: each element
# becomes the sum of all elements up to its own place. Exercise 25 asks for a scan in few steps, exercise 26 for a
# **work-efficient** one, with few additions. In exercise 27 the maximum and the sum of a **softmax** merge as moments
# do. Exercise 30 looks for an **argmax**, the place of a row's largest element, and exercise 31 for the two largest
# elements.
#
# Before that, here: a block of 128 threads finds the **largest** value, and every thread must know it. `course.check`
# tries it.

# %%
from normlab import course


@cuda.jit
def block_max(x, maxima):
    """A block of 128 threads per row: x and maxima are (rows, 128); every thread writes its row's maximum."""
    # Your lines.


course.check(block_max, "block_max")

# %% [markdown]
# <details><summary><b>Solution.</b></summary>
#
# Shuffles within the warps, then four values in shared memory, and one barrier between writing and reading. A second
# barrier would be needed if the block went on to another row with the same buffer.
#
# ```python
# @cuda.jit
# def block_max(x, maxima):
#     """A block of 128 threads per row: x and maxima are (rows, 128); every thread writes its row's maximum."""
#     buffer = cuda.shared.array(4, float32)
#     row = cuda.blockIdx.x
#     i = cuda.threadIdx.x
#     value = x[row, i]
#     for level in range(5):
#         value = max(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, 16 >> level))
#     if i % 32 == 0:
#         buffer[i // 32] = value
#     cuda.syncthreads()  # all four maxima are there before any of them is read
#     for warp in range(4):
#         value = max(value, buffer[warp])
#     maxima[row, i] = value
# ```
# </details>
#
# Next: [6. LayerNorm forward](06_forward.ipynb).
