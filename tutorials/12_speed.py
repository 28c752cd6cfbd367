# %% [markdown]
# # 12. Speed of light: vectors, registers, persistence, and the H200's records
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/normlab/normlab/blob/main/tutorials/12_speed.ipynb)
#
# **Aim.** Say how fast a kernel could be at best, find what keeps it from that, and read measurements with this in
# mind.
#
# **Before.** Tutorials [6](06_forward.ipynb) and [7](07_backward.ipynb); of [8](08_columns.ipynb) the idea of partial
# sums.
#
# **Time.** 40 minutes.

# %%
# In Colab this installs normlab; elsewhere it does nothing.
import sys

if "google.colab" in sys.modules:
    import subprocess

    package = "normlab[torch] @ git+https://github.com/normlab/normlab"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=True)
# %%
import matplotlib.pyplot as plt
import numpy as np

from normlab import lesson, model
from normlab.bench import records
from normlab.engine import cuda, float32, launch, load_vector_into, store_vector_from, use_gpu
from normlab.kernels import BEST, LADDERS
from normlab.sim import trace
from normlab.xray import NormProblem

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
# This is the **roofline** (Williams, Waterman and Patterson 2009). An H200, from its data sheet:

# %%
gpu = model.H200
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
# way. That is what this house measures against: "1.0" means as fast as a copy.

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
# So the best kernels are at the speed of a copy. How does one get there? Four ideas, from the forward ladder's step 4
# on.
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
# One element for each load is not enough, even with all threads there are. And it is worse for bfloat16 than for
# float32: the same number of loads, half the bytes. Look at the measured steps with single-element loads:

# %%
for step in LADDERS["forward"][1:5]:
    half, single = lesson.measured(step)
    print(f"{step.name:15} bfloat16 {half:.2f}, float32 {single:.2f} of a copy's speed")

# %% [markdown]
# ### Vectors
#
# A load instruction can bring **16 bytes** to each lane: four float32, or eight bfloat16. Numba does not make such
# instructions from ordinary code. normlab's engine has two intrinsics that do: `load_vector_into(target, start, array,
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
from normlab.engine import compile_ptx

try:
    for kernel in (copy_elements, copy_vectors):
        ptx = compile_ptx(kernel, ((f32, 1), (f32, 1)))
        print(f"{kernel.__name__:14}", [word for word in ptx.split() if word.startswith(("ld.global", "st.global"))])
except ImportError as error:
    print(f"no compiler here ({error}): pip install 'normlab[gpu]'")

# %% [markdown]
# ## 2. The row in registers
#
# apex's kernel reads x twice, step 4 three times. Step 5 loads the row once, in vectors, and keeps it. A row of 4,096
# float32 is 16 KiB; with 256 threads that is 16 values for each thread: 16 registers. All passes then run over
# registers, and the accurate two-pass formula costs nothing.
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
figure, axes = plt.subplots(1, 3, figsize=(12, 3.4), layout="constrained", sharey=True)
for ax, (name, title) in zip(axes, names.items(), strict=True):
    values = [result.metrics[name] for result in traced.values()]
    ax.barh(list(traced), values, color="#1b4f8a")
    for place, value in enumerate(values):
        ax.text(value, place, f" {value:,.0f}", va="center", fontsize=8)
    ax.set(title=title, xlim=(0, 1.25 * max(values)))
axes[0].invert_yaxis()
plt.show()

# %% [markdown]
# Up to `column_blocks` the requests do not get much fewer. With `vectors` they drop to a seventh, and x is loaded
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
ax.step(per_thread, [model.residency(int(r), 0, 128).occupancy.fraction for r in per_thread], where="post")
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
# <details><summary><b>Question.</b> A row of 65,536 float32 is 256 KiB. Does it fit into the registers of one block?</summary>
#
# No. A multiprocessor has 65,536 registers of 4 bytes, 256 KiB in all, and the kernel needs some for other things. Step
# 7 spreads such a row over several multiprocessors that can read each other's shared memory: a <em>cluster</em>.
# </details>
#
# ## 3. Fewer barriers
#
# While a block waits at a barrier, its loads for the next row have not been started. Step 5 has two trees a row, each
# with several barriers. Step 6 uses a formula that you know: each warp finds the moments of *its own* part, in two
# passes over its registers; then, after **one** barrier, all warps merge all parts (Chan's formula, for many groups at
# once). Also, a block has several rows, each with a small team of warps. While one team waits, others load.
#
# ## 4. Persistence
#
# The backward pass needs column sums. apex reads everything once more for them. Step 2 of the backward ladder starts
# only as many blocks as fit on the GPU at a time; each lives until the end and takes row after row. It is
# **persistent**. So a thread always sees the same columns, and keeps their sums in registers. In the end each block
# leaves one row of partial sums, and a small kernel adds them up (tutorial 8).
#
# Persistence also avoids a ragged end. Blocks that run at a time are a **wave**. If 330 blocks run where 264 fit, the
# second wave is a quarter full:

# %%
for blocks in (264, 265, 330, 528, 10_000):
    wave = model.waves(blocks, at_once=264)
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
# - **Read how it was timed.** L2 was flushed before each call, so that every byte comes from memory. Without that, small problems would look faster than memory. The median of several runs is
#   given, and every contender's result was checked first: a fast wrong kernel is not fast.
#
# <details><summary><b>Question.</b> Some points of torch.compile lie above 1. How can that be?</summary>
#
# The yardstick is PyTorch's copy, which is not the fastest copy possible. And one or two percent are within what the
# measurements scatter. It is a yardstick, not a law.
# </details>
#
# ## Here

# %%
n1, n2 = (32768, 4096) if use_gpu() else (4, 1024)
arrays = [np.ones((n1, n2)), np.ones(n2), np.zeros(n2), np.zeros((n1, n2)), np.zeros(n1), np.zeros(n1)]
x, weight, bias, output, mean, invvar = lesson.on_device(*(array.astype(f32) for array in arrays))
for step in LADDERS["forward"]:
    took = lesson.timed(lambda step=step: step.run(launch, x, weight, bias, f32(1e-5), output, mean, invvar))
    speed = f", {2 * n1 * n2 * 4 / took.seconds / 1e12:.2f} TB/s" if use_gpu() else ""
    print(f"{step.name:15} {took}{speed}{'   <- the best on an H200' if step.name == BEST['forward'] else ''}")

# %% [markdown]
# <details><summary><b>Question.</b> You find a kernel at 0.6 of a copy, with 16-byte loads, reading everything once. Name three suspects.</summary>
#
# Too few bytes in flight: each thread has one vector, or registers allow few threads. Barriers: everyone waits at the
# same time. The grid: too few blocks, or a nearly empty last wave. (A profiler would tell; <code>normlab bench
# ladder</code> prints registers and occupancy beside the times.)
# </details>
#
# ## What you have seen
#
# - A norm is bound by memory. Its speed of light is a copy's.
# - Bandwidth needs bytes in flight: vectors, several loads for each thread, enough threads.
# - Keep the row in registers; meet at few barriers; let blocks live on where sums must be carried along.
# - A measurement is worth what its method is worth.
#
# ## Exercise
#
# The course's exercise 16: a vectorised copy, with its ragged end. `normlab course check 16`. Before that, here: change
# `copy_vectors` so that it works for 1,023 elements.

# %%
# Your kernel here.

# %% [markdown]
# Next: [13. The matrix product](13_sgemm_tiles.ipynb).
