# %% [markdown]
# # 11. The row kernel of Triton, and the norm family
#
# **Aim.** Meet the other way to write a row kernel: whole blocks of columns instead of threads. Then see that batch,
# instance, group and layer norm are one formula over four index sets, and that the stages serve all of them.
#
# **Before.** Tutorials [3](03_chan.ipynb) and [6](06_forward.ipynb).
#
# **Time.** 30 minutes.

# %%
import numpy as np

import normlab
from normlab import family, oracle
from normlab.engine import float32, launch, use_gpu
from normlab.kernels import LADDERS, ForwardProblem
from normlab.kernels.forward import step_4_column_blocks
from normlab.learn import lesson
from normlab.learn.xray import NormProblem
from normlab.sim import trace

lesson.begin()
f32 = np.float32

# %% [markdown]
# ## Programs instead of threads
#
# In Triton, a language for GPU kernels within Python, one does not write what a thread does. One writes what a
# **program** does, which works on whole blocks of values at once, as in NumPy. The compiler decides which thread holds
# what. Its tutorial on layer normalisation has a kernel in which a program takes a row, and goes over it in blocks of
# columns. In NumPy, such a program is:


# %%
def row_program(x, block, masked=True):
    """LayerNorm of one row, a block of columns at a time, in float32. Returns (output, mean, variance)."""
    n = len(x)

    def blocks():
        for start in range(0, n, block):
            columns = start + np.arange(block)
            there = columns < n  # the mask: the last block reaches beyond the row
            yield columns, there, np.where(there, x[np.minimum(columns, n - 1)], f32(0))

    sums = np.zeros(block, f32)  # a sum for each place in the block
    for _, _, values in blocks():
        sums += values
    mean = sums.sum() / f32(n)
    sums = np.zeros(block, f32)
    for _, there, values in blocks():
        deviations = np.where(there, values - mean, f32(0)) if masked else values - mean
        sums += deviations * deviations
    variance = sums.sum() / f32(n)
    output = np.empty_like(x)
    for columns, there, values in blocks():
        output[columns[there]] = ((values - mean) / np.sqrt(variance + f32(1e-5)))[there]
    return output, mean, variance


x = (np.random.default_rng(0).normal(size=1000) + 3).astype(f32)
output, mean, variance = row_program(x, block=256)
truth = oracle.layer_norm(x, 1000)
print("largest error:", np.abs(output - truth.output).max())

# %% [markdown]
# Three passes over the row: mean, variance, write. No Welford, no merge of moments, only sums. It reads x three times.
# But a row is short enough to stay in the cache, so memory is asked once, or little more.
#
# **The mask matters twice.** What lies beyond the row is loaded as 0. For the mean that is fine: zeros add nothing. For
# the variance it is not: a 0 beyond the row's end would count as (0 − mean)².

# %%
wrong = row_program(x, block=256, masked=False)[2]
print(
    f"variance {variance:.4f}; without the mask {wrong:.4f}; 24 places of mean² too many: {variance + 24 * mean**2 / 1000:.4f}"
)

# %% [markdown]
# 1000 = 4 × 256 − 24. With n a multiple of the block, nothing would show. (Tutorial 10: nice shapes.)
#
# ## The same, thread by thread
#
# Step 4 of the forward ladder, `column_blocks`, is this kernel with everything that Triton's compiler would add: which
# thread has which columns, and the trees. It has the three passes of `row_program`. Here is its beginning, up to the end
# of the first pass. (`cuda.local.array(LOADS, dtype)` is a small array that belongs to one thread alone. If only
# constants index it, the compiler keeps it in registers. `LOADS` is 8, `threads` 128, `block_columns` 8 × 128, and
# `total` adds up a thread's eight sums. A load is "in flight" until its value has arrived.)

# %%
mean_pass, variance_pass, write_pass = lesson.source(step_4_column_blocks.build(float32, 128)).split("\n\n")
print(mean_pass)

# %% [markdown]
# The second pass has the same two loops, with the mask that matters around the squared deviation:

# %%
print(variance_pass)

# %% [markdown]
# And the third pass walks in the same way and writes. What is new? In the inner `for k in range(LOADS)`, a thread loads
# **eight** elements and adds them to eight *different* sums. No addition needs another's result, and so a thread can
# have eight loads on their way before it waits for the first. In apex's kernel the elements go through one chain: each
# Welford step, with its division, needs the one before.
#
# Also, in each single load, neighbouring lanes read neighbouring elements. Compare the two, traced on the same problem.
# (`NormProblem` makes random operands for a step of a ladder and traces its launches; `normlab trace` does the same on a
# command line.)

# %%
steps = {step.name: step for step in LADDERS["forward"]}
problem = NormProblem("forward", n1=4, n2=1024)
apex, blocks = (problem.trace(steps[name]).traces[0] for name in ("apex", "column_blocks"))
counts = {
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": "load requests",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": "sectors loaded",
    "normlab__barriers.sum": "barriers",
}
lesson.draw_counts({"apex": apex, "column_blocks": blocks}, counts)

# %%
_ = blocks.draw_sectors(
    lesson.line(step_4_column_blocks.build(float32, 128), "sums[k] += load(x, (row, column))"), "ld", "x"
)

# %% [markdown]
# More loads, because it has three passes instead of two. But each of them touches 4 sectors, where a load of
# `row_moments` touches 16 (tutorial 6): so fewer sectors in all. On an H200:

# %%
for name in ("warp_shuffle", "apex", "column_blocks"):
    half, single = lesson.measured(steps[name])
    print(f"{name:14} bfloat16 {half:.2f}, float32 {single:.2f} of a copy's speed")

# %% [markdown]
# All in one league: still *one element for each load instruction*, which is the next tutorial's subject.
#
# <details><summary><b>Question.</b> 128 threads add up a row of 4,096, each in eight sums. How long is the longest chain of additions, and
# what does that do to the error bound?</summary>
#
# A thread has 32 elements, so each of its eight sums gets 4. Joining the eight takes 7 more additions, one after another.
# That is a chain of 11 where one sum alone would have 32; then come 5 + 2 levels of the tree, as ever. The bound grows
# with 11 + 7 = 18 instead of 39. <code>step_4_column_blocks.STEP.row_chains(4096)</code> says so.
# </details>
#
# ## One formula, four index sets
#
# Convolutional networks have inputs of shape (N, C, H, W): N images, C channels, H × W pixels. All norms compute
#
# $$ y = \frac{x - \mu_S}{\sqrt{\sigma_S^2 + \varepsilon}}\, \gamma_c + \beta_c $$
#
# They differ only in the **set S** of values that share a mean and a variance (Wu and He 2018 draw it so). Orange is one
# set, blue is its neighbour; a sample is one of the N images:

# %%
family.plot_index_sets()

# %% [markdown]
# In NumPy, a set is a choice of axes. Here are all four, and normlab's kernels beside them:

# %%
N, C, H, W, G = 3, 8, 5, 5, 4
rng = np.random.default_rng(1)
x = (rng.normal(size=(N, C, H, W)) + np.arange(C)[:, None, None]).astype(f32)
weight, bias = rng.normal(size=(2, C)).astype(f32)


def by_axes(x, axes, eps=1e-5):
    """Normalised over these axes, in float64."""
    x = x.astype(np.float64)
    return (x - x.mean(axis=axes, keepdims=True)) / np.sqrt(x.var(axis=axes, keepdims=True) + eps)


def affine(xhat):
    return xhat * weight[:, None, None] + bias[:, None, None]


wanted = {
    "batch": affine(by_axes(x, (0, 2, 3))),
    "instance": affine(by_axes(x, (2, 3))),
    "group": affine(by_axes(x.reshape(N, G, C // G, H, W), (2, 3, 4)).reshape(x.shape)),
    "layer": affine(by_axes(x, (1, 2, 3))),
}
# Layer norm's weight and bias are per element.
full = [np.broadcast_to(one[:, None, None], (C, H, W)).astype(f32) for one in (weight, bias)]
got = {
    "batch": family.batch_norm(x, weight=weight, bias=bias),
    "instance": family.instance_norm(x, weight=weight, bias=bias),
    "group": family.group_norm(x, G, weight, bias),
    "layer": family.layer_norm(x, (C, H, W), *full),
}
for name, want in wanted.items():
    output, mean, invvar = got[name]
    print(f"{name:9} {mean.size:3} sets, largest error {np.abs(output - want).max():.1e}")

# %% [markdown]
# <details><summary><b>Question.</b> Group norm with G = C, and with G = 1: which norms are these?</summary>
#
# G = C: instance norm. G = 1: layer norm over (C, H, W), but with one γ for each channel instead of one for each
# element.
# </details>
#
# ## Group norm is a layer norm in disguise
#
# In memory, (N, C, H, W) lies image by image, channel by channel. The channels of a group are neighbours. So a group's
# values are one **stretch** of C/G × H × W values. View the array as a matrix with a group in each row, and
# `row_moments` of tutorial 6 does the rest:

# %%
rows = x.reshape(N * G, C // G * H * W)
output, mean, invvar = normlab.layer_norm_forward(rows, rows.shape[1], step="apex")
print("group norm by rows, largest error:", np.abs(affine(output.reshape(x.shape)) - wanted["group"]).max())

# %% [markdown]
# Only γ and β differ: they go by channel, not by column. Column j of a row belongs to channel j // (H W) of the row's
# group, and the group is the row's number modulo G. (The course's exercise 23 needs just that.)
#
# For **batch norm** it does not work: a channel's values lie in
# N separate stretches. There, moments of pieces are merged with `chan_merge` (tutorial 3). First kernel: moments of
# pieces. Second: merge those of a set. Third: write. By hand, with the stages as plain Python functions (`py_func`):

# %%
from normlab.stages import chan_merge, welford_step

channel = 2
merged = f32(0), f32(0), f32(0)
for image in range(N):
    piece = f32(0), f32(0), f32(0)
    for value in x[image, channel].ravel():
        piece = welford_step.py_func(value, *piece)
    merged = chan_merge.py_func(*merged, *piece)
print("mean", merged[0], "kernel", got["batch"][1][channel])
print("invvar", 1 / np.sqrt(merged[1] / merged[2] + 1e-5), "kernel", got["batch"][2][channel])

# %% [markdown]
# The second kernel does not know of images. Pieces may as well come from several GPUs.
#
# ## The backward is the same, too
#
# In tutorial 7, nothing was special about a row. It was a set of n values that share μ and σ. So for every norm:
#
# $$ \frac{\partial L}{\partial x} = r_S \left( g - \text{mean}_S(g) - \hat x\, \text{mean}_S(g \hat x) \right), \qquad g = dy\, \gamma_c $$

# %%
dy = rng.normal(size=x.shape).astype(f32)
axes = (0, 2, 3)  # batch norm
xhat, g = by_axes(x, axes), dy * weight[:, None, None].astype(np.float64)
r = 1 / np.sqrt(x.astype(np.float64).var(axis=axes, keepdims=True) + 1e-5)
want = r * (g - g.mean(axis=axes, keepdims=True) - xhat * (g * xhat).mean(axis=axes, keepdims=True))
_, mean, invvar = got["batch"]
grad_input, grad_weight, grad_bias = family.batch_norm_backward(dy, x, mean, invvar, weight, bias)
print("grad_input, largest error: ", np.abs(grad_input - want).max())
print("grad_weight, largest error:", np.abs(grad_weight - (dy * xhat).sum(axis=axes)).max())

# %% [markdown]
# ## Layout decides about sectors
#
# Some frameworks keep images "channels last": in memory (N, H, W, C). The sets are the same; the addresses are not.
# Which way should lanes walk? Along what is contiguous. Let a warp read 32 values of one channel, in both layouts:

# %%
from normlab.engine import cuda


@cuda.jit
def read_channel(x, y):
    """The first 32 pixels of channel 0. x: (pixels, channels), with strides as they are."""
    lane = cuda.threadIdx.x
    y[lane] = x[lane, 0]


pixels = np.zeros((64, 64), f32)
line = lesson.line(read_channel, "x[lane, 0]")
channels_first, channels_last = pixels.T, pixels  # in the first, a channel's pixels are neighbours in memory
first = trace(read_channel)[1, 32](channels_first, np.zeros(32, f32)).request(line, "ld")
last = trace(read_channel)[1, 32](channels_last, np.zeros(32, f32)).request(line, "ld")
print("sectors a request, channels first:", len(set(address // 32 for address in first.addresses)))
print("sectors a request, channels last: ", len(set(address // 32 for address in last.addresses)))

# %% [markdown]
# So for channels last, lanes take neighbouring *channels*, and each lane walks down the pixels: the columns of tutorial
# 8. normlab has both walks, `planes` and `columns` in `normlab/kernels/family`, and the same merge behind both.
#
# <details><summary><b>Question.</b> At inference, batch norm uses running averages instead of the batch's statistics. What remains of the kernel?</summary>
#
# One multiplication and one addition for each element, with constants for each channel. It can be folded into the
# convolution before it.
# </details>
#
# ## Here

# %%
n1, n2 = (16384, 4096) if use_gpu() else (4, 1024)
arrays = [
    np.ones((n1, n2), f32),
    np.ones(n2, f32),
    np.ones(n2, f32),
    np.ones((n1, n2), f32),
    np.ones(n1, f32),
    np.ones(n1, f32),
]
x, weight, bias, output, mean, invvar = lesson.on_device(*arrays)
problem = ForwardProblem(x, weight, bias, f32(1e-5), output, mean, invvar)
for name in ("warp_shuffle", "apex", "column_blocks"):
    step = steps[name]
    took = lesson.timed(lambda step=step: step.run(launch, None, problem))  # None: it needs no scratch memory
    print(f"{name:14} {took}")

# %% [markdown]
# ## What you have seen
#
# - A row kernel can be thought in blocks of columns with masks. Beyond the mask, sums must not see the zeros.
# - Independent sums keep several loads on their way at the same time.
# - Batch, instance, group and layer norm differ in an index set. Row moments and Chan's merge serve them all, forward and backward.
#
# ## Exercise
#
# The course's exercise 23: group norm from row moments. `normlab course check 23`. Before that, here: RMS-normalise
# over channels only, at each pixel (some vision models do), with channels first. Which way should the threads walk?
# `course.check` tries it.

# %%
import math

from normlab import course


@cuda.jit
def channel_rms(x, eps, y):
    """A thread per pixel: x, y (samples, channels, pixels). The grid has (blocks of 32 pixels, samples) blocks."""
    # Your lines.


course.check(channel_rms, "channel_rms")

# %% [markdown]
# <details><summary><b>Solution.</b></summary>
#
# A thread for each pixel. In each step of its walk down the channels, neighbouring threads load neighbouring pixels.
# With channels last a warp for each pixel would be better.
#
# ```python
# @cuda.jit
# def channel_rms(x, eps, y):
#     """A thread per pixel: x, y (samples, channels, pixels). The grid has (blocks of 32 pixels, samples) blocks."""
#     pixel = cuda.grid(1)
#     sample = cuda.blockIdx.y
#     if pixel < x.shape[2]:
#         squares = float32(0)
#         for channel in range(x.shape[1]):
#             value = x[sample, channel, pixel]
#             squares += value * value
#         invvar = float32(1) / math.sqrt(squares / float32(x.shape[1]) + eps)
#         for channel in range(x.shape[1]):
#             y[sample, channel, pixel] = x[sample, channel, pixel] * invvar
# ```
# </details>
#
# Next: [12. Speed of light](12_speed.ipynb).
