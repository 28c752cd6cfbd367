# %% [markdown]
# # 6. LayerNorm forward: apex's kernel, composed
#
# **Aim.** Put the stages together into the forward kernel of NVIDIA's apex. Test it on shapes that hurt, see what it
# moves, and get RMSNorm out of the same source.
#
# **Before.** Tutorials [2](02_moments.ipynb) to [5](05_block.ipynb): Welford, Chan, shuffles, blocks.
#
# **Time.** 30 minutes.

# %%
import math

import matplotlib.pyplot as plt
import numpy as np

from normlab import oracle
from normlab.engine import cuda, float32, launch, load, store, use_gpu
from normlab.kernels import LADDERS, ForwardProblem
from normlab.learn import lesson
from normlab.sim import sanitize, trace
from normlab.stages import row_moments
from normlab.stages.recompute import affine, element, normalised_from_input
from normlab.stages.warp import thread_index

lesson.begin()
f32 = np.float32

# %% [markdown]
# ## The plan
#
# The input x has n1 rows and n2 columns. For each row:
#
# $$ y_{ij} = (x_{ij} - \mu_i)\, r_i\, \gamma_j + \beta_j, \qquad r_i = \frac{1}{\sqrt{\sigma_i^2 + \varepsilon}} $$
#
# r is called `invvar` in apex, and in normlab. (It is one over the standard deviation, not over the variance. The name
# has stuck.) The kernel also stores μ and r, two numbers a row: the backward pass will need them.
#
# **A block takes a row.** It has 128 threads, so four warps. Its threads
#
# 1. run Welford over their share of the row (tutorial 2),
# 2. merge within each warp by shuffles (tutorial 4),
# 3. merge the four warps through shared memory (tutorials 3 and 5),
# 4. go over the row once more and write y.
#
# The first three are a stage, `row_moments`. Read it; you know its parts. (`STEP` is 4. `thread_index()` is the number of
# the thread in its block, also where the block has an x and a y. `block_moments` is like `block_sums` of tutorial 5, with
# Chan's merge in place of the additions.)

# %%
print(lesson.source(row_moments))

# %% [markdown]
# Who reads what? Thread t takes elements 4t to 4t + 3; then it jumps by 4 × 128 = 512. Here is a row of 1,100:

# %%
n2, threads = 1100, 128
owner = (np.arange(n2) // 4) % threads
figure, ax = plt.subplots(figsize=(9, 2.4), layout="constrained")
ax.scatter(np.arange(n2), owner, s=2, c=owner // 32, cmap="tab10", vmax=9, rasterized=True)
ax.set(
    xlabel="column",
    ylabel="thread (colour: warp)",
    title="A row of 1,100 dealt to 128 threads, four elements at a time",
)
plt.show()
values, counts = np.unique(owner, return_counts=True)
print("elements a thread has:", {int(n): int((counts == n).sum()) for n in np.unique(counts)}, "(elements: threads)")

# %% [markdown]
# Shares differ in size. Chan's merge does not mind: it knows each side's count. Nor does it mind threads with an empty
# share, in shorter rows.
#
# ## The kernel


# %%
@cuda.jit
def layer_norm(x, weight, bias, eps, output, mean, invvar):
    """x, output: (n1, n2); weight, bias: (n2,); mean, invvar: (n1,). Grid: n1 blocks of 128 threads."""
    buffer = cuda.shared.array((3, 4), float32)  # mean, m2 and count of four warps
    row = cuda.blockIdx.x
    center, variance = row_moments(x, row, buffer)
    scale = float32(1) / math.sqrt(variance + eps)
    column = thread_index()
    while column < x.shape[1]:
        xhat = normalised_from_input(load(x, (row, column)), center, scale)
        store(output, (row, column), affine(xhat, element(weight, column), element(bias, column)))
        column += 128
    if thread_index() == 0:
        store(mean, row, center)
        store(invvar, row, scale)


def run(kernel, x, weight, bias, eps=1e-5):
    output = np.full(x.shape, np.nan, x.dtype)  # NaN: what the kernel forgets to write shows
    mean, invvar = np.full((2, len(x)), np.nan, f32)
    launch(kernel, len(x), 128, x, weight, bias, f32(eps), output, mean, invvar)
    return output, mean, invvar


rng = np.random.default_rng(0)
x = (rng.normal(size=(4, 1000)) + 5).astype(f32)
weight, bias = rng.normal(size=(2, 1000)).astype(f32)
output, mean, invvar = run(layer_norm, x, weight, bias)
truth = oracle.layer_norm(x, 1000, weight, bias)
print("largest error of the output:", np.abs(output - truth.output).max())

# %% [markdown]
# `xhat` (x̂) is the normalised value, before γ and β. `affine` applies these two. `element(weight, column)` loads from
# an array, or gives None where there is none; more of that below.
#
# ## Shapes that hurt
#
# One shape is no test. Which row lengths could go wrong?
#
# - 1: variance 0, and only one thread has something.
# - 3: less than one step of four.
# - 127, 128, 129: around the number of threads.
# - 511, 512, 513: around one full step of all threads.
#
# For each, the error is divided by the bound from the oracle. Above 1 would be a mistake. (`-(-n2 // 512)` is n2 / 512,
# rounded up.)


# %%
def arithmetic(n2):
    """How this kernel adds: a chain of so many Welford steps in a thread, then 5 + 2 levels of merges."""
    return oracle.Arithmetic(
        row_terms=4 * -(-n2 // 512), row_merges=7, column_terms=1, column_merges=0, statistics="welford"
    )


for n2 in (1, 3, 4, 31, 127, 128, 129, 511, 512, 513, 1000):
    x = (rng.normal(size=(2, n2)) * 3 + 100).astype(f32)
    weight, bias = rng.normal(size=(2, n2)).astype(f32)
    truth = oracle.layer_norm(x, n2, weight, bias)
    bound = oracle.layer_norm_bound(x, n2, weight, bias, 1e-5, arithmetic(n2))
    got = run(layer_norm, x, weight, bias)
    used = [
        oracle.assert_within(one, want, allowed, name)
        for one, want, allowed, name in zip(got, truth, bound, ("output", "mean", "invvar"), strict=True)
    ]
    print(f"n2 = {n2:5}  error / bound: output {used[0]:.3f}, mean {used[1]:.3f}, invvar {used[2]:.3f}")

# %% [markdown]
# And no race, no bad index, no read of garbage:

# %%
x = rng.normal(size=(2, 300)).astype(f32)
output, mean, invvar = np.empty((2, 300), f32), np.empty(2, f32), np.empty(2, f32)
print(sanitize(layer_norm)[2, 128](x, np.ones(300, f32), np.zeros(300, f32), f32(1e-5), output, mean, invvar))

# %% [markdown]
# ## RMSNorm by leaving things out
#
# RMSNorm (Zhang and Sennrich 2019) does not subtract the mean:
#
# $$ y_{ij} = x_{ij}\, r_i\, \gamma_j, \qquad r_i = \frac{1}{\sqrt{\frac1n \sum_j x_{ij}^2 + \varepsilon}} $$
#
# One could write a second kernel. Instead, the ladder's step `apex` takes `None` for what is absent. Numba compiles a
# kernel anew for every combination of argument *types*, and None has a type of its own. So `if mean is not None` is
# decided by the compiler, and costs nothing when the kernel runs. Here is the whole step:

# %%
from normlab.kernels.forward import step_3_apex

print(lesson.source(step_3_apex.build(float32)))

# %% [markdown]
# Differences from ours: None for what is absent, and a loop over rows. (Rows are counted by `blockIdx.y`, as in apex. A
# grid has at most 65,535 blocks in y, so a block may have to take several rows.) `WARPS` is 4, `THREADS` 128, and `dtype`
# what `build` was given. `row_mean_square` is `row_moments` for sums of squares.

# %%
x = (rng.normal(size=(4, 500)) + 1).astype(f32)
weight = rng.normal(size=500).astype(f32)
output, invvar = np.full(x.shape, np.nan, f32), np.full(4, np.nan, f32)
step = next(step for step in LADDERS["forward"] if step.name == "apex")
problem = ForwardProblem(x, weight, None, f32(1e-5), output, None, invvar)  # no bias, no mean: RMSNorm
step.run(launch, None, problem)  # None: it needs no scratch memory
print("largest error:", np.abs(output - oracle.rms_norm(x, 500, weight).output).max())

# %% [markdown]
# <details><summary><b>Question.</b> Why does RMSNorm need no Welford?</summary>
#
# It squares x itself and adds up positive numbers. Nothing is subtracted, so nothing cancels: the relative error stays
# at a few u, whatever the mean is. Cancellation was the problem of E[x²] − E[x]², not squaring.
# </details>
#
# ## What does it move?
#
# The least possible: read x once, write y once, 2 n1 n2 × 4 bytes. This kernel reads x twice. Each multiprocessor has a
# cache of its own, called **L1**. (All of them share a larger one, **L2**.) Count what moves between L1 and the threads:

# %%
x = rng.normal(size=(4, 1024)).astype(f32)
weight, bias = np.ones(1024, f32), np.zeros(1024, f32)
output, mean, invvar = np.empty_like(x), np.empty(4, f32), np.empty(4, f32)
counted = trace(layer_norm)[4, 128](x, weight, bias, f32(1e-5), output, mean, invvar)
reads = counted.array("x").counted(stores=False)
print("times that each element of x is loaded:", np.unique(reads).tolist())
least = 2 * x.nbytes
metrics = counted.metrics
moved = metrics["normlab__bytes_moved_mem_global_op_ld.sum"] + metrics["normlab__bytes_moved_mem_global_op_st.sum"]
print(f"bytes between L1 and the threads: {moved:,.0f}, {moved / least:.1f} times the least")

# %% [markdown]
# Four times the least. In units of the size of x, the least is 2, and this is 8: the output 1, x in the second pass 1,
# weight and bias 1 each (they are loaded again for every row), and so 4 for x in the *first* pass. Why 4? Look at the
# load in `row_moments`: a thread takes four neighbours, one after another. So in each single load instruction,
# neighbouring *lanes* are four elements apart.

# %%
_ = counted.draw_sectors(lesson.line(row_moments, "welford_step(load(x, (row, column + k))"), "ld", "x")

# %% [markdown]
# 16 sectors for 128 bytes: a quarter used. The next three loads want the other three quarters, and find them in L1, if
# all goes well. So global memory is spared, but the way between L1 and the threads is not. The four neighbours should be
# *one* load of 16 bytes. [Tutorial 12](12_speed.ipynb) does it.
#
# ## The ladder so far
#
# The same computation in eight steps, each a file in `normlab/kernels/forward`. Here is what they reached on an H200 in
# bfloat16, for 32,768 rows of 4,096, as a fraction of the speed of a plain copy of the same size:

# %%
reached = lesson.ladder("forward")
figure, ax = plt.subplots(figsize=(9, 3.4), layout="constrained")
ax.barh(list(reached), reached.values(), color=["#c8401a" if name == "apex" else "#1b4f8a" for name in reached])
for place, (step, fraction) in enumerate(zip(LADDERS["forward"], reached.values(), strict=True)):
    inside = fraction > 0.6
    text = f"{fraction:.2f}   {step.summary}" if not inside else f"{step.summary}   {fraction:.2f}"
    where = {"ha": "right", "color": "white"} if inside else {"ha": "left", "color": "black"}
    ax.text(fraction + (-0.01 if inside else 0.01), place, text, va="center", fontsize=9, **where)
ax.axvline(1, color="black", linewidth=0.8)
ax.set(xlim=(0, 1.02), xlabel="of a copy's speed (1: as fast as a copy)")
ax.invert_yaxis()
plt.show()

# %% [markdown]
# apex's kernel (orange) is in the middle. You have seen its weak points: Welford's divisions, loads of single elements,
# and a second reading. We began with it because all stages are there. What the last three steps do, tutorial 12 tells.
#
# ## Here

# %%
n1, n2 = (16384, 4096) if use_gpu() else (4, 1024)
arrays = [np.ones((n1, n2)), np.ones(n2), np.zeros(n2), np.zeros((n1, n2)), np.zeros(n1), np.zeros(n1)]
x, weight, bias, output, mean, invvar = lesson.on_device(*(array.astype(f32) for array in arrays))
problem = ForwardProblem(x, weight, bias, f32(1e-5), output, mean, invvar)
for step in LADDERS["forward"][:4]:
    took = lesson.timed(lambda step=step: step.run(launch, None, problem))  # None: it needs no scratch memory
    print(f"{step.name:15} {took}")

# %% [markdown]
# <details><summary><b>Question.</b> Each thread of <code>layer_norm</code> loads <code>weight[column]</code> again for every row.
# Is that bad?</summary>
#
# All rows use the same n2 weights, a few kilobytes: they stay in the caches. It costs load instructions, not memory
# traffic. A block that takes many rows could keep them; the backward's
# fastest step does, in shared memory.
# </details>
#
# <details><summary><b>Question.</b> Why is <code>invvar</code> saved, and not the variance?</summary>
#
# The backward pass multiplies by it, once for each element. Saving it spares every thread a root and a division. And
# forward and backward then use the same rounded number.
# </details>
#
# ## What you have seen
#
# - A kernel is stages and a loop. Each stage could be tested alone; the kernel is tested on shapes around its block and step sizes.
# - None as an argument gives a kernel compiled without that part.
# - What a kernel moves can be counted, and its weak points located, before it ever runs on a GPU.
#
# ## Exercise
#
# The course's exercise 13 (row moments), exercise 14 (LayerNorm forward) and exercise 15 (RMSNorm by a flag): `normlab
# course check 13` and so on. Before that, here: LayerNorm with fewer blocks than rows. A block takes rows `row`, `row
# + gridDim`, … in a loop. Does it need another barrier? `course.check` tries it.

# %%
import math

from normlab import course


@cuda.jit
def layer_norm_rows(x, weight, bias, eps, output):
    """Three blocks of 64 threads for all rows: x, output (rows, columns); weight, bias (columns,)."""
    buffer = cuda.shared.array((3, 2), float32)
    # Your lines.


course.check(layer_norm_rows, "layer_norm_rows")

# %% [markdown]
# <details><summary><b>Solution.</b></summary>
#
# No further barrier is needed. `row_moments` begins with one, so no warp writes into the buffer while another still
# reads the last row's values.
#
# ```python
# @cuda.jit
# def layer_norm_rows(x, weight, bias, eps, output):
#     """Three blocks of 64 threads for all rows: x, output (rows, columns); weight, bias (columns,)."""
#     buffer = cuda.shared.array((3, 2), float32)
#     for row in range(cuda.blockIdx.x, x.shape[0], cuda.gridDim.x):
#         mean, variance = row_moments(x, row, buffer)
#         invvar = float32(1) / math.sqrt(variance + eps)
#         for column in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
#             output[row, column] = (x[row, column] - mean) * invvar * weight[column] + bias[column]
# ```
# </details>
#
# Next: [7. The backward pass](07_backward.ipynb).
