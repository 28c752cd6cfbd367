# %% [markdown]
# # 12. Speed of light: vectors, registers, persistence, and the H200's records
#
# **Aim.** Say how fast a kernel could be at best, find what keeps it from that, and read measurements with this in
# mind.
#
# **Before.** Tutorials [6](06_forward.ipynb) and [7](07_backward.ipynb); of [8](08_columns.ipynb) the idea of partial
# sums.
#
# **Time.** 40 minutes.

# %%
import matplotlib.pyplot as plt
import numpy as np

from normlab.bench import records
from normlab.engine import (
    cluster_arrive,
    cluster_arrive_shared,
    cluster_wait,
    compile_ptx,
    cuda,
    flat,
    float32,
    launch,
    load_vector_evict_last,
    load_vector_into,
    shift_of,
    store_vector_from,
    use_gpu,
)
from normlab.kernels import BEST, LADDERS, ForwardProblem, roofline
from normlab.learn import lesson
from normlab.learn.xray import NormProblem
from normlab.sim import trace
from normlab.sim.tracing.pictures import draw_banks
from normlab.stages.warp import warp_sum_butterfly

lesson.begin()
f32 = np.float32

# %% [markdown]
# ## What binds?
#
# A kernel moves bytes and does arithmetic. The GPU does both at the same time. So the time is at least that of the
# slower of the two:
#
# $$ t \ge \max\left( \frac{\text{operations}}{\text{operations per second}}, \frac{\text{bytes}}{\text{bytes per second}} \right) $$
#
# This is the **roofline** (Williams, Waterman and Patterson 2009). An H200, from its data sheet (a TFLOP/s is 10¹²
# operations on floats a second):

# %%
gpu = roofline.H200
print(f"float32 arithmetic: {gpu.peak / 1e12:.0f} TFLOP/s, memory: {gpu.bandwidth / 1e12:.1f} TB/s")
print(f"so memory binds below {gpu.ridge:.0f} operations for each byte")

# %% [markdown]
# A LayerNorm reads 4 bytes and writes 4 for each float32 element. It does about eight operations with it: one to sum,
# three for the variance, four to normalise and scale. That is **one** operation a byte. So arithmetic
# is next to free, and memory binds:
#
# - forward: read x, write y: at least 2 n1 n2 elements;
# - backward: read x (or y) and dy, write grad_input: at least 3 n1 n2.
#
# No GPU reaches the data sheet's bandwidth. An honest yardstick is a plain **copy** of as many bytes, timed in the same
# way. That is what normlab measures against: "1.0" means as fast as a copy.

# %%
(record,) = records.load(["norm_float32_h200"])
row = next(r for r in record["rows"] if (r["norm"], r["direction"], r["n2"]) == ("layer", "forward", 4096))
print(
    f"{row['n1']:,} x {row['n2']:,} float32, forward, at least {row['bytes'] / 1e9:.2f} GB ({record['gpu']}, {record['date'][:10]})"
)
print(f"at the data sheet's bandwidth: {row['bytes'] / gpu.bandwidth * 1e6:6.1f} µs")
print(f"a copy of as many bytes:       {row['copy']['median_us']:6.1f} µs ({row['copy']['gb_per_s'] / 1e3:.2f} TB/s)")
print(f"normlab's LayerNorm:           {row['contenders']['normlab']['median_us']:6.1f} µs")

# %% [markdown]
# So the best kernels are at the speed of a copy. How does one get there? By eight ideas. The first three and the last two
# are those of the forward ladder's last steps (`vectors`, `one_barrier`, `clusters`), the others those of the backward's
# (`fused`, `pipelined`).
#
# ## 1. Bytes in flight
#
# Memory is far away. From a load to its value takes somewhat below a microsecond. If a multiprocessor asked for one
# thing, waited, and asked for the next, it would get nearly nothing. It must have many requests **in flight**. How
# many? Little's law, from queueing:
#
# > bytes in flight = bandwidth × latency
#
# Take 0.7 µs as an example. Each of 132 multiprocessors holds up to 2,048 threads. If each thread waits for one load:

# %%
latency = 0.7e-6  # seconds; an assumption, of the right size
print(
    f"needed in flight: {gpu.bandwidth * latency / 1e6:.1f} MB, {gpu.bandwidth * latency / gpu.multiprocessors / 1024:.0f} KiB for each multiprocessor"
)
threads = gpu.multiprocessors * 2048
for name, size in (("one bfloat16", 2), ("one float32", 4), ("16 bytes", 16), ("four times 16 bytes", 64)):
    reached = min(1, threads * size / latency / gpu.bandwidth)
    print(f"each thread waits for {name:20}: at most {reached:4.0%} of the bandwidth")

# %% [markdown]
# That is for loads. No thread waits for a *store*, and half of what a norm's forward moves are stores: so it may reach
# about twice these numbers. It may reach more if a thread starts its next load before the last one has come, as
# `column_blocks` does with eight. Still, one element for each load is not enough, even with all threads there are. And it
# is worse for bfloat16 than for float32: the same number of loads, half the bytes. Look at the measured steps with
# single-element loads (as fractions of a copy, which itself reaches at most <!--=copy of the data sheet-->88<!--=--> % of
# the data sheet's bandwidth):

# %%
for step in LADDERS["forward"][1:5]:
    half, single = lesson.measured(step)
    print(f"{step.name:15} bfloat16 {half:.2f}, float32 {single:.2f} of a copy's speed")

# %% [markdown]
# ### Vectors
#
# A load instruction can bring **16 bytes** to each lane: four float32, or eight bfloat16. Numba does not make such
# instructions from ordinary code. normlab's engine has two functions that do: `load_vector_into(target, start, array,
# index, width)` and `store_vector_from`.


# %%
@cuda.jit
def copy_elements(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = x[i]


@cuda.jit
def copy_vectors(x, y):
    values = cuda.local.array(4, float32)  # a thread's own; the compiler keeps it in registers
    i = 4 * cuda.grid(1)
    if i < x.shape[0]:
        load_vector_into(values, 0, x, i, 4)
        store_vector_from(y, i, values, 0, 4)


x, y = np.zeros(1024, f32), np.zeros(1024, f32)
elements = trace(copy_elements)[8, 128](x, y)
vectors = trace(copy_vectors)[2, 128](x, y)
elements.compare(vectors)

# %%
_ = vectors.draw_sectors(lesson.line(copy_vectors, "load_vector_into"))

# %% [markdown]
# A quarter of the requests, the same sectors, each fully used: 512 bytes by one instruction. (The address must be a
# multiple of 16, and the row must not end inside a vector. `normlab.stages.vector.widest` finds what is possible, and
# the kernels are compiled for it.)
#
# Is it really one instruction? One can look at what the compiler makes, without a GPU. **PTX** is NVIDIA's assembly
# language for a virtual machine:

# %%
try:
    for kernel in (copy_elements, copy_vectors):
        ptx = compile_ptx(kernel, ((f32, 1), (f32, 1)))
        print(f"{kernel.__name__:14}", [word for word in ptx.split() if word.startswith(("ld.global", "st.global"))])
except ImportError as error:
    print(f"no compiler here ({error}): pip install 'normlab[gpu]'")

# %% [markdown]
# ## 2. The row in registers
#
# apex's kernel reads x twice, `column_blocks` three times. The next step, `vectors`, loads the row once, in vectors, and
# keeps it. A row of 4,096 float32 is 16 KiB; with 256 threads that is 16 values for each thread: 16 registers. All passes
# then run over registers, and the accurate two-pass formula of tutorial 2 costs next to nothing.
#
# Here is the ladder, counted on one problem: 4 rows of 1,024 float32. Each number is for all launches of a step.

# %%
problem = NormProblem("forward", n1=4, n2=1024)
traced = {step.name: problem.trace(step) for step in LADDERS["forward"]}
names = {
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": "load requests",
    "normlab__bytes_moved_mem_global_op_ld.sum": "bytes loaded",
    "normlab__barriers.sum": "barriers",
}
lesson.draw_counts(traced, names)

# %% [markdown]
# `thread_per_row` has a lane for each row, so here only four of a warp's lanes work, and it makes many requests. From
# `block_tree` to `column_blocks` the requests hardly change. With `vectors` they drop to a seventh, and x is loaded
# once. (Two thirds of the bytes that are left are weight and bias, again for each row; they come out of a cache.)
# `one_barrier` cuts the barriers.
#
# ### Registers are not free
#
# A multiprocessor has 65,536 registers. If each thread takes 32, then 2,048 threads fit. If each takes 64, half as many
# do. What share of its threads a multiprocessor can hold is called **occupancy**.

# %%
per_thread = np.arange(16, 256, 8)
figure, ax = plt.subplots(figsize=(8, 3))
ax.step(per_thread, [roofline.residency(int(r), 0, 128).occupancy.fraction for r in per_thread], where="post")
ax.set(
    xlabel="registers a thread",
    ylabel="occupancy",
    ylim=(0, 1.05),
    title="Blocks of 128 threads on an H200's multiprocessor (computed)",
)
plt.show()

# %% [markdown]
# High occupancy is not an end in itself. What counts is bytes in flight: threads × bytes for each. Half as many threads
# with four vectors each are better than all threads with one element. That is why a fast step may well run at an
# occupancy of a half.
#
# And if the bytes are the same? 2,048 threads with two vectors have as much in flight as 1,024 with four. Measured on an
# H200 (`one_barrier`, bfloat16, n2 = 8192, fractions of a copy), this is what the two norms say:
#
# | | 256 threads a row, 4 vectors | 512 threads a row, 2 vectors |
# | --- | --: | --: |
# | LayerNorm | **1.00**, 64 registers | 0.92, 40 registers |
# | RMSNorm | 1.00, 53 registers | **1.01**, 32 registers |
#
# The more threads, the sooner the next row begins when one ends. But 2,048 threads must do with 32 registers each. Left
# alone, RMSNorm takes 36, so that a quarter of the threads does not fit, and 0.98 comes of it. One has to ask the
# compiler for less: `launch_bounds=(512, 4)` says, "four blocks of 512 shall fit". LayerNorm, with its mean and its
# bias, cannot do with 32: its 0.92 are three blocks of 512, with 40. Leave them too few registers, and values **spill**
# into slow memory. (The table of all row lengths is in `normlab/kernels/forward/tables.py`.)
#
# <details><summary><b>Question.</b> A row of 65,536 float32 is 256 KiB. Does it fit into the registers of one block?</summary>
#
# No. A multiprocessor has 65,536 registers of 4 bytes, 256 KiB in all, and the kernel needs some for other things. The
# last step, <code>clusters</code>, spreads such a row over several blocks that run at the same time and can read each
# other's shared memory: a <em>cluster</em>.
# </details>
#
# ## 3. Fewer barriers
#
# While a block waits at a barrier, its loads for the next row have not been started. `vectors` has two trees a row, each
# with several barriers. `one_barrier` uses a formula that you know: each warp finds the moments of *its own* part, in two
# passes over its registers; then, after **one** barrier, all warps merge all parts (Chan's formula, for many groups at
# once). Also, a block has several rows, each with a small team of warps. While one team waits, others load.
#
# ## 4. Persistence
#
# The backward pass needs column sums. apex reads everything once more for them. The step `fused` of the backward ladder
# starts only as many blocks as fit on the GPU at a time; each lives until the end and takes row after row. It is
# **persistent**. So a thread always sees the same columns, and keeps their sums in registers. In the end each block
# leaves one row of partial sums, and a small kernel adds them up (tutorial 8).
#
# Persistence also avoids a ragged end. Blocks that run at a time are a **wave**. If 330 blocks run where 264 fit, the
# second wave is a quarter full:

# %%
for blocks in (264, 265, 330, 528, 10_000):
    wave = roofline.waves(blocks, at_once=264)
    print(f"{blocks:6,} blocks, 264 at a time: {wave.rounds:3} rounds, busy {wave.busy:.0%} of the time")

# %%
problem = NormProblem("backward", n1=8, n2=256)
print(f"{'step':15} {'load requests':>14} {'bytes moved / least':>20}")
for step in LADDERS["backward"]:
    metrics = problem.trace(step).metrics
    moved = metrics["normlab__bytes_moved_mem_global_op_ld.sum"] + metrics["normlab__bytes_moved_mem_global_op_st.sum"]
    print(
        f"{step.name:15} {metrics['l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum']:14,} {moved / (3 * 8 * 256 * 4):20.1f}"
    )

# %% [markdown]
# (On so small a problem, parameters and partial sums weigh more than they do in real life.)
#
# ## 5. Banks, with 16 bytes a lane
#
# The last step, `pipelined`, has rows copied into shared memory ahead of time: `copy_async` starts a copy that goes on by
# itself and takes no registers. While the block works on one row, the next ones are on their way. That gives bytes in
# flight without threads that wait. γ and β lie in shared memory, too, at first as float32. So now everything is read
# from shared memory, and *its* speed counts.
#
# A lane gets its part of a bfloat16 row as eight elements, 16 bytes. So it needs eight float32 of γ: 32 bytes, which are
# two loads of 16. Lay these eight in a row for each lane, as they come. Or cut them in halves: first the first four of
# all lanes, then the second four of all lanes. Which is better? The kernel below can do either.


# %%
@cuda.jit
def read_parameters(from_lane, from_half, y):
    """Lane l finds its two halves, of four float32 each, at l from_lane and at l from_lane + from_half."""
    parameters = cuda.shared.array(512, float32, alignment=16)  # loads of 16 bytes want addresses that are multiples
    eight = cuda.local.array(8, float32)
    lane = cuda.threadIdx.x
    for k in range(16):
        parameters[32 * k + lane] = k
    cuda.syncthreads()  # all parameters are there before they are read
    for half in range(2):
        load_vector_into(eight, 4 * half, parameters, lane * from_lane + half * from_half, 4)
    y[lane] = eight[0] + eight[4]


reading = lesson.line(read_parameters, "load_vector_into")
figure, axes = plt.subplots(1, 2, figsize=(15, 6.8), layout="constrained")
for ax, from_lane, from_half in zip(axes, (8, 4), (4, 128), strict=True):
    request = trace(read_parameters)[1, 32](from_lane, from_half, np.zeros(32, f32)).request(reading, "ld")
    draw_banks(request, ax)
    print(f"{from_lane} float32 from lane to lane: {request.wavefronts} wavefronts for one load of 16 bytes a lane")
plt.show()

# %% [markdown]
# A wavefront has 32 banks × 4 bytes = 128 bytes. 32 lanes want 512 bytes, so **four** wavefronts are the least: eight
# lanes in each. On the left, lanes are 32 bytes apart. Eight of them reach over 256 bytes, twice round the banks. So lane 4
# meets lane 0, lane 5 meets lane 1, and so on: **eight** wavefronts. And half of each is not used: it holds the other
# halves, which the second load wants, in eight wavefronts of its own. On the right, the lanes' 16 bytes follow each
# other, and no two meet in a bank.
#
# This is no detail. It was found late, by a profiler: shared memory was busy 70 % of the time. Recomputing (tutorial 9)
# suffered most, since it read three arrays of parameters, γ, β and 1/γ, and most of them in both passes. On an H200,
# bfloat16, n2 = 4096: the backward of LayerNorm that recomputes went from **0.64 to 0.81** of a copy by this change of
# order alone. Then other things bound, and so the numbers of threads and of rows in flight were measured anew; with
# those it came to **0.90**, and today it is at <!--=best backward recomputing-->0.95<!--=-->.
# (`loader` in `normlab/kernels/backward/pipelined/parameters_wide.py` does it, and a test counts the wavefronts with
# `trace`. Today it is for float32 parameters alone: those of 16 bits stay as they are, and each pass widens them.)
#
# <details><summary><b>Question.</b> Tutorial 5 cured conflicts by padding. Can padding do it here?</summary>
#
# Yes: let lanes be 12 float32 apart (it must be a multiple of 4, for 16 bytes at once). Eight lanes then begin in banks
# 0, 12, 24, 4, 16, 28, 8 and 20: all different. But a third of the memory is unused, and shared memory is what limits
# the rows in flight. Try it: <code>read_parameters</code> with 12 and 4.
# </details>
#
# ## 6. What does a barrier wait for?
#
# `pipelined` deals long rows to the blocks of a **cluster**: blocks that run at the same time, and can read each
# other's shared memory. For each row they exchange sums, so they meet at a barrier of the cluster. It comes in two
# halves, `cluster_arrive` ("I am here") and `cluster_wait` ("are all here?"). In between a block does what needs no
# other block: it writes `grad_input` of the row before.
#
# Now, what has to be visible to others after a barrier? *Everything* that was written before it, so the rule says. Look at
# the instruction:


# %%
@cuda.jit
def meet(y):
    y[cuda.grid(1)] = 1
    cluster_arrive()
    cluster_wait()


@cuda.jit
def meet_about_shared_memory(y):
    y[cuda.grid(1)] = 1
    cluster_arrive_shared()
    cluster_wait()


try:
    for kernel in (meet, meet_about_shared_memory):
        lines = [line.strip() for line in compile_ptx(kernel, ((f32, 1),)).splitlines()]
        print(kernel.__name__, *[line for line in lines if "barrier" in line], sep="\n    ")
except ImportError as error:
    print(f"no compiler here ({error}): pip install 'normlab[gpu]'")

# %% [markdown]
# `arrive.release` releases all stores of the thread: it waits until the whole GPU sees them, the rows of `grad_input`
# included. They go to global memory, which is far away, and no block of the cluster reads them. So with every
# row the block waits for its own output.
#
# The cure is to say less. The sums stay in the shared memory of their own block, and the others fetch them behind the
# barrier. So only shared memory needs an order. `cluster_arrive_shared` orders just that (the `fence` in the second
# kernel), and then arrives with `relaxed`, which waits for nothing.
#
# It is the rule of tutorial 5, and its other side. A barrier must order what is needed. It should not order more.
#
# ## 7. What should a cache give up first?
#
# Between memory and the multiprocessors lies the **L2 cache**, 60 MiB on an H200. Whatever is read goes through it, and
# pushes older lines out. A norm reads x once, so a cache is of no use to x. It seems clever to say so with each load:
# *give this line up first*, `evict_first`. We tried. The forward kernels became 2 to 4 % slower.
#
# At that time `torch.compile` was ahead of `one_barrier` at several row lengths, by up to 4 %. In part it did less: it did
# not write the statistics. But for long rows the reason stood in its PTX. Its loads say the opposite, *give this line up
# last*:


# %%
@cuda.jit
def copy_evict_last(x, y):
    values = cuda.local.array(4, float32)
    i = 4 * cuda.grid(1)
    if i < x.shape[0]:
        load_vector_evict_last(values, 0, x, i, 4)
        store_vector_from(y, i, values, 0, 4)


try:
    for kernel in (copy_vectors, copy_evict_last):
        ptx = compile_ptx(kernel, ((f32, 1), (f32, 1)))
        lines = [line.strip() for line in ptx.splitlines() if "ld.global" in line or "createpolicy" in line]
        print(kernel.__name__, *lines, sep="\n    ")
except ImportError as error:
    print(f"no compiler here ({error}): pip install 'normlab[gpu]'")

n = 2**26 if use_gpu() else 4096
x, y = lesson.on_device(np.ones(n, f32), np.zeros(n, f32))
for kernel in (copy_vectors, copy_evict_last):
    print(f"{kernel.__name__:16}", lesson.timed(lambda kernel=kernel: launch(kernel, n // 512, 128, x, y)))

# %% [markdown]
# `createpolicy` makes a number that stands for the wish, and the load carries it along. In `vectors` and `one_barrier`
# all reads of x do so now. They gained 1 to 4 %, and some run faster than the copy that they are compared
# with. Why it helps, NVIDIA does not say. (In the simulator both kernels are the same: it has no L2.)
#
# There are two lessons. What seems clever has to be measured. And when another kernel is faster, read it.
#
# ## 8. A row that begins in the middle of a vector
#
# A load of 16 bytes wants an address that is a multiple of 16. With 4,096 columns every row begins at one. But take 11
# columns of float32: row 1 begins at element 11, and a vector at element 8 or 12. Such lengths are real: a vocabulary
# of 50,257 tokens, or a batch cut out of a larger array. With one element per load, a LayerNorm of 333 columns of
# bfloat16 reached 0.39 of a copy's speed on an H100.
#
# The way out: *memory* has vectors, whatever the rows do. A thread takes whole vectors of memory, those that the row
# touches. The first and the last hold elements of the neighbours, too. Here are three rows of 11; what lies between two
# thick lines is one load, and the number is the thread's:

# %%
figure, axes = plt.subplots(3, 1, figsize=(11, 2.8), layout="constrained", sharex=True)
for row, ax in enumerate(axes):
    begin, end = 11 * row, 11 * row + 11
    for element in range(36):
        own = begin <= element < end
        ax.add_patch(plt.Rectangle((element, 0), 1, 1, facecolor="#9dc3e6" if own else "white", edgecolor="lightgray"))
    first = begin // 4
    for vector in range(first, -(-end // 4)):
        ax.add_patch(plt.Rectangle((4 * vector, 0), 4, 1, fill=False, edgecolor="black", linewidth=2))
        ax.text(4 * vector + 2, 0.5, str(vector - first), ha="center", va="center")
    ax.set(xlim=(-0.2, 36.2), ylim=(-0.05, 1.05), yticks=[], ylabel=f"row {row}", xticks=range(0, 37, 4))
axes[-1].set_xlabel("element of the matrix")
plt.show()


# %% [markdown]
# The white elements in a thread's vectors are the neighbours'. They come with the load, and must not count:


# %%
@cuda.jit
def row_sums(x, sums):
    """A warp per row: x (rows, columns), of which the elements are a multiple of 4 in all; sums (rows,)."""
    values = cuda.local.array(4, float32)
    line, row, columns = flat(x), cuda.blockIdx.x, x.shape[1]
    before = shift_of(line, row * columns, 4)  # elements of the first vector that are the row before's
    total = float32(0)
    for vector in range(cuda.threadIdx.x, (before + columns + 3) // 4, 32):
        load_vector_into(values, 0, line, row * columns - before + 4 * vector, 4)
        for k in range(4):
            column = 4 * vector + k - before
            if 0 <= column < columns:
                total += values[k]
    total = warp_sum_butterfly(total)
    if cuda.threadIdx.x == 0:
        sums[row] = total


x, sums = np.random.default_rng(0).normal(size=(8, 333)).astype(f32), np.zeros(8, f32)
counted = trace(row_sums)[8, 32](x, sums)
print("largest error:", abs(sums - x.sum(axis=1, dtype=np.float64)).max())
requests = counted.metrics["l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"]
print(f"load requests: {requests}, one element per lane would take {8 * -(-333 // 32)}")

# %% [markdown]
# The output is stored in the same way, with one difference: nothing may be written to the neighbours. At its two ends a
# row stores smaller pieces: of three elements a pair and a single one.
#
# γ and β make more trouble. They begin at a multiple of 16 bytes, so column c of the parameters lies elsewhere in a
# vector than column c of the row. Every row could bring them together anew. But every *fourth* row begins at the same place
# (in 16 bits every eighth). So a block takes only such rows, and shifts γ and β once, on their way to shared memory.
# (`normlab/stages/shifted.py` does all this for the forward. Today LayerNorm of 333 columns of bfloat16
# reaches <!--=odd columns-->0.91<!--=--> of a copy on an H100, and of 5,001 columns <!--=more odd columns-->0.95<!--=-->.)
#
# <details><summary><b>Question.</b> Rows 0 and 1 of x are equal, and so are the numbers that their threads load. Have
# the two sums the same bits?</summary>
#
# Not always. Row 1 begins elsewhere in a vector, so its elements fall to other threads, and are added in another order.
# Rows 0 and 4 have the same bits. And no sum depends on how many rows there are.
# </details>
#
# ## Reading the records
#
# Now the measurements: both directions, both dtypes, on an H200, over the row length. Each point is a fraction of the
# speed of a copy. Beside normlab: PyTorch's own kernel, and what `torch.compile` makes.

# %%
figure, axes = plt.subplots(2, 2, figsize=(11, 6), layout="constrained", sharex=True, sharey=True)
looks = {"normlab": ("o-", "#1b4f8a"), "compile": ("s--", "#c8401a"), "torch": ("^:", "grey")}
for across, dtype in enumerate(("bfloat16", "float32")):
    (record,) = records.load([f"norm_{dtype}_h200"])
    for down, direction in enumerate(("forward", "backward")):
        ax = axes[down, across]
        rows = [r for r in record["rows"] if (r["norm"], r["direction"]) == ("layer", direction)]
        for name, (style, colour) in looks.items():
            ax.plot(
                [r["n2"] for r in rows],
                [r["contenders"][name]["of_copy"] for r in rows],
                style,
                color=colour,
                label=name,
                markersize=4,
            )
        ax.axhline(1, color="black", linewidth=0.6)
        ax.set(xscale="log", title=f"LayerNorm {direction}, {dtype}", ylim=(0, 1.1))
for ax in axes[1]:
    ax.set_xlabel("n2")
for ax in axes[:, 0]:
    ax.set_ylabel("of a copy's speed")
axes[0, 0].legend(fontsize=8)
plt.show()
print(record["method"])

# %% [markdown]
# How to read such a plot:
#
# - **Near 1** there is nothing left to win, for this way of counting. Who is at 0.98 and who at 1.01 is within the scatter.
# - **The backward is harder**: more arithmetic for each byte, more registers, and column sums.
# - **Long rows** fall behind. They fit into no block's registers.
# - **Read how it was timed.** L2 was overwritten with other data before each call, so that every byte comes from
#   memory. Without that, small problems would look faster than memory. The median of several runs is given, and every
#   contender's result was checked first: a fast wrong kernel is not fast.
#
# <details><summary><b>Question.</b> Some points lie above 1. How can that be?</summary>
#
# The yardstick is PyTorch's copy, and nothing says that it is the fastest way to move bytes: a norm whose reads L2 gives up
# last may be faster. And one or two percent are within what the measurements scatter. It is a yardstick, not a law.
# </details>
#
# ## Here

# %%
n1, n2 = (32768, 4096) if use_gpu() else (4, 1024)
arrays = [np.ones((n1, n2)), np.ones(n2), np.zeros(n2), np.zeros((n1, n2)), np.zeros(n1), np.zeros(n1)]
x, weight, bias, output, mean, invvar = lesson.on_device(*(array.astype(f32) for array in arrays))
problem = ForwardProblem(x, weight, bias, f32(1e-5), output, mean, invvar)
for step in LADDERS["forward"]:
    took = lesson.timed(lambda step=step: step.run(launch, None, problem))  # None: it needs no scratch memory
    speed = f", {2 * n1 * n2 * 4 / took.seconds / 1e12:.2f} TB/s" if use_gpu() else ""
    print(f"{step.name:15} {took}{speed}{'   <- the best on an H200' if step.name == BEST['forward'] else ''}")

# %% [markdown]
# <details><summary><b>Question.</b> You find a kernel at 0.6 of a copy, with 16-byte loads, reading everything once. Name three suspects.</summary>
#
# Too few bytes in flight: each thread has one vector, or registers allow few threads. Barriers: all warps wait at the
# same time. The grid: too few blocks, or a nearly empty last wave. (A profiler would tell; <code>normlab bench
# ladder</code> prints registers and occupancy beside the times.)
# </details>
#
# ## What you have seen
#
# - A norm is bound by memory. Its speed of light is a copy's.
# - Bandwidth needs bytes in flight: vectors, several loads for each thread, enough threads.
# - Keep the row in registers; meet at few barriers; let blocks live on where sums must be carried along.
# - Once memory is not in the way, shared memory's banks are, and barriers that order more than is needed.
# - A hint to a cache is a guess until it is measured.
# - A row may begin in the middle of a vector: load whole vectors of memory, and leave the neighbours' elements out.
# - A measurement is worth what its method is worth.
#
# ## Exercise
#
# The course's exercise 22: a vectorised copy, with its ragged end. `normlab course check 22`. Before that, here:
# change `copy_vectors` so that it works for 1,023 elements, and for any other number. (`load_vector(x, i, 4)` gives
# the four values as a tuple, and `store_vector(y, i, values)` takes one.) `course.check` tries it.

# %%
from normlab import course
from normlab.engine import load_vector, store_vector


@cuda.jit
def copy_vectors(x, y):
    """y = x, both (n,): a thread for each 4 elements; 64 threads per block."""
    # Your lines.


course.check(copy_vectors, "copy_vectors")

# %% [markdown]
# <details><summary><b>Solution.</b></summary>
#
# At most one thread has an incomplete vector. It copies its one to three elements one by one.
#
# ```python
# @cuda.jit
# def copy_vectors(x, y):
#     """y = x, both (n,): a thread for each 4 elements; 64 threads per block."""
#     i = 4 * cuda.grid(1)
#     if i + 4 <= x.shape[0]:
#         store_vector(y, i, load_vector(x, i, 4))
#     else:
#         for k in range(i, x.shape[0]):
#             y[k] = x[k]
# ```
# </details>
#
# Next: [13. The matrix product](13_sgemm_tiles.ipynb).
