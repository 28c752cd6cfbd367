# %% [markdown]
# # 1. Threads, warps, blocks, and the simulator
#
# **Aim.** Write a kernel, launch it, and see what its threads ask of memory: who reads what, together with whom, and
# what that costs.
#
# **Before.** Python and NumPy. Nothing about GPUs.
#
# **Time.** 30 minutes.

# %%
import matplotlib.pyplot as plt
import numpy as np

from normlab.engine import cuda, float32, launch, use_gpu
from normlab.learn import lesson
from normlab.sim import sanitize, trace

lesson.begin()

# %% [markdown]
# What is printed above says where kernels run here: on a GPU, or in normlab's **simulator** of one. The notebook is the
# same in both cases. All *results* below hold for a GPU, and so do the *counts* (except for loads that a compiler saves:
# see the end). Only *times* need one.
#
# ## First, watch one
#
# Here is a kernel, and 64 threads that run it. You need not understand it yet. Click on the page below, and press → to
# go step by step. On the left is the code, on the right each thread is a small square.


# %%
@cuda.jit
def first_look(x, y):
    i = cuda.threadIdx.x
    total = float32(0)
    for k in range(1 + i % 3):
        total += x[i + k]
    if i < 16:
        y[i] = total
    else:
        y[i] = -total


x, y = np.arange(80, dtype=np.float32), np.zeros(64, np.float32)
trace(first_look, play=0)[1, 64](x, y).play()

# %% [markdown]
# Three things to see, which this tutorial explains one by one:
#
# - The threads stand in two rows of 32, and a row goes through the code together. It is called a warp.
# - Where threads want different things, at the `for` and at the `if`, some squares are empty: these threads wait.
# - When a line reads or writes an array, a picture shows which pieces of memory the warp asks for.
#
# At the bottom a model shows how warps fill each other's waiting times. Real times need a GPU; this is what the waiting
# looks like. `trace(kernel, play=0)` makes such a page of any kernel: `play` is the number of the block to watch.
#
# ## A kernel is a function that many threads run
#
# In NumPy you say what should happen to a whole array. On a GPU you write what **one thread** does, and start many
# threads. The function is called a **kernel**. It returns nothing: it writes into arrays that it was given.
#
# Every thread runs the same code. So a thread must ask which one it is. Here each writes down its own number.


# %%
@cuda.jit
def who_am_i(block, thread, number):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    block[i] = cuda.blockIdx.x
    thread[i] = cuda.threadIdx.x
    number[i] = i


block, thread, number = np.full((3, 24), -1)
launch(who_am_i, 3, 8, block, thread, number)  # 3 blocks of 8 threads, then the kernel's arguments
print("block ", block)
print("thread", thread)
print("number", number)

# %% [markdown]
# - `@cuda.jit` marks a kernel. It comes from Numba, a compiler for Python functions: with a GPU, Numba compiles the
#   function for it.
# - `launch(kernel, blocks, threads, *arguments)` starts it. Without a GPU, normlab's simulator runs it.
# - Threads come in **blocks** of equal size. All blocks together are the **grid**.
# - `cuda.threadIdx.x` is the thread's number in its block. `cuda.blockIdx.x` is the block's number in the grid.
#   `cuda.blockDim.x` is the number of threads in a block.

# %%
figure, ax = plt.subplots(figsize=(9, 1.6), layout="constrained")
for i in range(24):
    left = i + i // 8  # a gap of one between blocks
    ax.add_patch(plt.Rectangle((left, 0), 1, 1, facecolor=("#cfe0f3", "#9cc3e6")[i % 2], edgecolor="white"))
    ax.text(left + 0.5, 0.5, f"{i % 8}", ha="center", va="center")
    ax.text(left + 0.5, -0.35, f"{i}", ha="center", va="center", color="#c8401a")
for b in range(3):
    ax.text(9 * b + 4, 1.3, f"block {b}", ha="center", va="center")
ax.text(-0.3, 0.5, "threadIdx.x", ha="right", va="center")
ax.text(-0.3, -0.35, "i", ha="right", va="center", color="#c8401a")
ax.set(xlim=(-4, 26.5), ylim=(-0.7, 1.7))
ax.axis("off")
plt.show()

# %% [markdown]
# The sum in the kernel's first line is so common that it has a name: `cuda.grid(1)`. (`.x` is there because blocks and
# grids may have two or three dimensions. Later.)
#
# Why two levels, and not just 24 threads? A GPU has many processors, called **multiprocessors**; NVIDIA's H200, the GPU
# that these notebooks quote, has 132. A block runs on one of them, from beginning to end. The threads of one block can
# talk to each other quickly. Different blocks run in any order, at the same time or one after another, and should not
# need each other.
#
# ## One thread too many
#
# The number of elements is rarely a multiple of the block size. So there are more threads than elements, and the last
# ones must do nothing. What if you forget that?


# %%
@cuda.jit
def double(x, y):
    i = cuda.grid(1)
    y[i] = 2 * x[i]


x, y = np.arange(20, dtype=np.float32), np.zeros(20, np.float32)
print(sanitize(double)[3, 8](x, y))  # 24 threads, 20 elements

# %% [markdown]
# `sanitize` ran the kernel in the simulator and watched every access. On a GPU there would be no message. The four
# extra threads would read the memory after `x`, and write over the memory after `y`, whatever is stored there.
#
# `sanitize(kernel)[blocks, threads](*arguments)` is Numba's own way to write a launch: `kernel[blocks, threads](...)`.
#
# The cure is a **guard**:


# %%
@cuda.jit
def double(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = 2 * x[i]


print(sanitize(double)[3, 8](x, y))
print(y)

# %% [markdown]
# ## 32 threads are a warp
#
# A multiprocessor does not step through threads one by one. It takes 32 neighbouring threads of a block at a time and
# gives them **one instruction**. These 32 are a **warp**. A thread's place in its warp is its **lane**, 0 to 31:
#
# > warp = thread // 32, lane = thread % 32
#
# A program does not declare warps. The GPU cuts them from the block in order.

# %%
threads = np.arange(96)
figure, axes = plt.subplots(2, 1, sharex=True, figsize=(9, 2.6), layout="constrained")
for ax, values, name in zip(axes, (threads // 32, threads % 32), ("warp", "lane"), strict=True):
    ax.pcolormesh(np.arange(97), [0, 1], values[None, :], cmap="Blues", edgecolor="white", linewidth=0.3)
    ax.set_yticks([0.5], [name])
    for start in range(0, 96, 8):
        ink = "white" if values[start] > values.max() / 2 else "black"
        ax.text(start + 0.6, 0.5, str(values[start]), ha="left", va="center", fontsize=8, color=ink)
axes[0].set_title("A block of 96 threads: three warps")
axes[1].set_xlabel("thread of the block")
plt.show()

# %% [markdown]
# What if lanes of a warp want to do different things? Then the warp does one thing after the other, and those lanes
# that do not take part wait. That is called **divergence**. Both kernels below copy 64 elements, half of them from a
# and half from b. In the first, neighbours part ways. In the second, a whole warp goes one way.


# %%
@cuda.jit
def lanes_part(a, b, y):
    i = cuda.threadIdx.x
    if i % 2 == 0:
        y[i] = a[i]
    else:
        y[i] = b[i]


@cuda.jit
def warps_part(a, b, y):
    i = cuda.threadIdx.x
    if i < 32:
        y[i] = a[i]
    else:
        y[i] = b[i]


a, b, y = np.zeros(64, np.float32), np.ones(64, np.float32), np.empty(64, np.float32)
parted = trace(lanes_part)[1, 64](a, b, y)
whole = trace(warps_part)[1, 64](a, b, y)
parted.compare(whole)

# %% [markdown]
# `trace` runs a kernel in the simulator and counts. The long names are those of NVIDIA's profiler, Nsight Compute, so
# that what you learn here you can read there; names that begin with `normlab` are our own. `op_ld` means loads, `op_st`
# stores. Look at two kinds of rows (sectors come next):
#
# - A **request** is one load or store instruction of one warp. The kernel whose lanes part makes twice as many.
# - The last row is how many lanes took part in a request, on average: 16, and 32.
#
# (The branches read two arrays on purpose. If both read the same element, the compiler for a GPU would load it once,
# before the branch. The simulator has no compiler: it counts what the source says.)
#
# <details><summary><b>Question.</b> Two warps, each loads once and stores once. Why does the second kernel make 2 load
# requests, and the first 4?</summary>
#
# In the first kernel every warp goes through both branches, with half of its lanes each time: 2 warps × 2 branches. In
# the second, a warp goes through one branch only.
# </details>
#
# ## Memory comes in sectors
#
# The arrays lie in **global memory**: large, shared by all, and slow. It is not read byte by byte. It moves **sectors**
# of 32 bytes. If a lane wants one float32 (4 bytes), the whole sector moves. The 31 other lanes may want the rest of
# it, in the same request. If they do, nothing is wasted.


# %%
@cuda.jit
def copy(x, y):
    i = cuda.grid(1)
    y[i] = x[i]


counted = trace(copy)[1, 32](np.zeros(32, np.float32), np.zeros(32, np.float32))
_ = counted.draw_sectors(lesson.line(copy, "y[i] = x[i]"), "ld")

# %% [markdown]
# (`lesson.line` finds the number of a line of the kernel; `"ld"` asks for its loads.) A row is a lane, a column a
# sector. Dark is what the lane wants; pale is what moves along. The lowest row is the whole warp. 32 lanes × 4 bytes =
# 128 bytes = 4 sectors, and all of it is used. This is the best there is for float32, and it is called a **coalesced**
# access: neighbouring lanes on neighbouring elements.
#
# Now let each lane skip seven elements.


# %%
@cuda.jit
def copy_every_eighth(x, y):
    i = cuda.grid(1)
    y[i] = x[8 * i]


counted = trace(copy_every_eighth)[1, 32](np.zeros(256, np.float32), np.zeros(32, np.float32))
_ = counted.draw_sectors(lesson.line(copy_every_eighth, "x[8 * i]"), "ld")

# %% [markdown]
# The same number of elements, but 32 sectors instead of 4. Seven eighths of what moves is of no use. The distance from
# one lane's element to the next lane's is the **stride**; here it is 8. How does the cost grow with the stride? Guess
# before you run the cell.


# %%
@cuda.jit
def copy_strided(x, y, stride):
    i = cuda.grid(1)
    y[i] = x[stride * i]


strides = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16]
sectors = []
for stride in strides:
    counted = trace(copy_strided)[1, 32](np.zeros(32 * stride, np.float32), np.zeros(32, np.float32), stride)
    sectors.append(counted.metrics["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"])

figure, ax = plt.subplots()
ax.plot(strides, sectors, "o-")
ax.axhline(32, color="grey", linestyle=":")
ax.text(16, 30.2, "a sector for each lane: it cannot get worse", ha="right", fontsize=8)
ax.set(xlabel="stride, in float32", ylabel="sectors a request", ylim=(0, 34), title="A warp loads 32 float32 (counted)")
plt.show()

# %% [markdown]
# ## Two ways to add up a row
#
# normlab is about LayerNorm, a layer of most language models. It works on the rows of a matrix, and its main work is
# adding up. So let us add up each row of a 32 × 128 matrix.
#
# **A thread per row.** It looks natural: each thread has a loop over the columns of its row.


# %%
@cuda.jit
def thread_per_row(x, total):
    row = cuda.grid(1)
    if row < x.shape[0]:
        value = float32(0)
        for column in range(x.shape[1]):
            value += x[row, column]
        total[row] = value


x = np.random.default_rng(0).normal(size=(32, 128)).astype(np.float32)  # (rows, columns)
total = np.zeros(32, np.float32)
by_thread = trace(thread_per_row)[1, 32](x, total)
print("largest difference from NumPy:", np.abs(total - x.sum(axis=1)).max())
_ = by_thread.draw_sectors(lesson.line(thread_per_row, "value += x"), "ld")

# %% [markdown]
# The loop runs along a row. But lanes stand in *different* rows, 128 elements apart. So in each turn of the loop a warp
# touches 32 sectors and uses 4 bytes of each.
#
# `float32(0)` is there for a reason. `0.0` is a float64, and so the compiler would carry the sum in float64, which
# is slow on a GPU.
#
# **A warp per row.** Lane 0 takes columns 0, 32, 64, …, lane 1 takes columns 1, 33, 65, …. Then neighbours read
# neighbours. Each lane ends with a partial sum. To join the 32 partial sums, one needs the warp to talk; that is
# [tutorial 4](04_shuffles.ipynb). Here each lane just stores its own.


# %%
@cuda.jit
def warp_per_row(x, partial):
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    value = float32(0)
    column = lane
    while column < x.shape[1]:
        value += x[row, column]
        column += 32
    partial[row, lane] = value


partial = np.zeros((32, 32), np.float32)
by_warp = trace(warp_per_row)[32, 32](x, partial)
print("largest difference from NumPy:", np.abs(partial.sum(axis=1) - x.sum(axis=1)).max())
counts = {
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": "load requests",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": "sectors loaded",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": "sectors stored",
}
lesson.draw_counts({"thread per row": by_thread, "warp per row": by_warp}, counts)

# %% [markdown]
# As many load requests as before, but of 4 sectors each, not 32: an eighth of the sectors. (There are more *stores*: 32
# partial sums a row instead of one sum.) A GPU has **caches**, small and fast memories that keep what was read lately.
# In the first kernel, a lane's next seven elements lie in the sector that it has just loaded. If the cache still has it
# then, little is lost. Often it does not.
#
# normlab has **ladders** of kernels: the same computation in steps, each with one idea more. In the first step of the
# LayerNorm ladder a thread takes a row, as in our first kernel. In the second a block does, and neighbours read
# neighbours:

# %%
from normlab.kernels import LADDERS

for step in LADDERS["forward"][:2]:
    half, single = lesson.measured(step)
    print(f"{step.name:15} {step.summary:45} float32: {single:.2f} of a copy's speed")

# %% [markdown]
# Those numbers were measured on an H200 (each step's file says so). 1.0 would be as fast as this GPU copies an array of
# the same size. The second step is <!--=second step of the forward-->8<!--=--> times as fast.
# (It also has 128 times as many threads, and that helps, too.)
#
# Does it show here? (`lesson.on_device` puts arrays where the kernels run; `lesson.timed` says how long a call takes.)

# %%
n1 = 65536 if use_gpu() else 32
rows, sums, partials = lesson.on_device(
    np.ones((n1, 1024), np.float32), np.zeros(n1, np.float32), np.zeros((n1, 32), np.float32)
)
print("thread per row:", lesson.timed(lambda: launch(thread_per_row, n1 // 32, 32, rows, sums)))
print("warp per row:  ", lesson.timed(lambda: launch(warp_per_row, n1, 32, rows, partials)))

# %% [markdown]
# The simulator does one instruction for many threads at once. So its time depends on the number of instructions and
# not on sectors: there the second kernel is quicker because its loop has fewer turns. That is why normlab *counts*
# where it has no GPU, and never quotes the simulator's time as a GPU's.
#
# ## What the simulator is
#
# It runs the Python body of a kernel: each instruction for many threads at once, or, where the order of threads may
# matter, thread by thread, each up to the next place where threads have to meet. It also has what later tutorials are
# about: shared memory, barriers, atomics. It rounds like float32. Its counters of requests and sectors were compared
# with Nsight Compute's on an H200, launch by launch:

# %%
import json
from importlib.resources import files

record = json.loads((files("normlab.bench") / "records" / "counters_h200.json").read_text())
launches = record["launches"]
same = sum(one["agrees"] and not one["fewer"] for one in launches)
explained = sum(one["agrees"] and bool(one["fewer"]) for one in launches)
print(f"{record['gpu, driver']}: {len(launches)} launches")
print(f"{same} have the same counters; in {explained} the compiler merged loads, and the rest is the same")

# %% [markdown]
# It has no clock, no caches and no compiler. The compiler may merge two loads of the source into one, or take a load out
# of a loop; that is the second number.
#
# <details><summary><b>Question.</b> A block has 33 threads. How many warps is that, and how many lanes of the last one
# do work?</summary>
#
# Two warps. One lane of the second works; the other 31 places are paid for and empty. Block sizes are multiples of 32
# for that reason.
# </details>
#
# <details><summary><b>Question.</b> Lanes read <code>x[31 - lane]</code>, so backwards. How many sectors?</summary>
#
# Still 4. What counts is which sectors the warp touches, not which lane wants which part. Try it with
# <code>trace</code>.
# </details>
#
# <details><summary><b>Question.</b> Lanes read <code>x[lane + 1]</code>. How many sectors?</summary>
#
# 5: the 128 bytes now begin in the middle of a sector and end in the middle of another.
# </details>
#
# ## What you have seen
#
# - A kernel says what one thread does. A launch says how many blocks of how many threads.
# - 32 threads are a warp, with one instruction for all. A load of a warp is a request.
# - Global memory moves sectors of 32 bytes. Neighbouring lanes should read neighbouring elements.
# - `trace` counts, `sanitize` finds mistakes, and both need no GPU.
#
# ## Exercise
#
# Six warm-ups of the course need no more than this tutorial, except one. Exercise 1 asks for a thread for each
# element, exercise 2 for a guard, exercise 3 for threads in two dimensions, exercise 4 for many blocks, exercise 6 for
# the size of a launch. (The fifth needs shared memory, which is in tutorial 5.) `normlab course start DIR` lays the
# exercises out in a folder, and `normlab course check 1` checks the first.
#
# Before that, here: write `copy_backwards`, in which a block copies n float32 in reverse order. `course.check` checks
# it as the course does: it tries many inputs, and says what is wrong, where, and for which input. How many sectors
# does it take? Draw them.

# %%
from normlab import course


@cuda.jit
def copy_backwards(x, y):
    """y = x in reverse order, both (n,), by one block of n threads."""
    # Your lines.


course.check(copy_backwards, "copy_backwards")

# %% [markdown]
# <details><summary><b>Solution.</b></summary>
#
# Thread i takes the element that is as far from the end as i is from the beginning. A warp touches the same four
# sectors as in the copy, so nothing is lost.
#
# ```python
# @cuda.jit
# def copy_backwards(x, y):
#     """y = x in reverse order, both (n,), by one block of n threads."""
#     i = cuda.threadIdx.x
#     y[x.shape[0] - 1 - i] = x[i]
# ```
# </details>
#
# Next: [2. Mean and variance](02_moments.ipynb).
