# %% [markdown]
# # 7. The backward pass: derived, then built
#
# **Aim.** Derive LayerNorm's gradient with respect to its input, understand what it means, and build the kernel: two
# sums along a row, then one line for every element.
#
# **Before.** [Tutorial 6](06_forward.ipynb). The chain rule.
#
# **Time.** 35 minutes.

# %%
import matplotlib.pyplot as plt
import numpy as np

from normlab import oracle
from normlab.engine import cuda, float32, launch, use_gpu
from normlab.kernels import LADDERS
from normlab.learn import lesson
from normlab.sim import sanitize, trace
from normlab.stages import block_sums, warp_sum_butterfly
from normlab.stages.gradient import row_terms

lesson.begin()
f32 = np.float32

# %% [markdown]
# ## What is given, and what is asked
#
# Training minimises a loss L. The backward pass goes through the layers from the last to the first. When it comes to
# ours, ∂L/∂y is known for every output: the array `grad_output`, **dy** for short. Three gradients are asked for: with
# respect to the input, to γ and to β.
#
# Write x̂ for the normalised value, so y_j = γ_j x̂_j + β_j (one row; j counts columns). Two of them are easy:
#
# $$ \frac{\partial L}{\partial \beta_j} = \sum_{\text{rows}} dy_j, \qquad
# \frac{\partial L}{\partial \gamma_j} = \sum_{\text{rows}} dy_j\, \hat x_j $$
#
# They are sums *down columns*; the next tutorial is about these. This one is about the input. The chain rule's first
# step is easy, too:
#
# $$ g_j := \frac{\partial L}{\partial \hat x_j} = dy_j\, \gamma_j $$
#
# ## The hard part: x̂ depends on x in three ways
#
# x̂_i = (x_i − μ) r, with r = (σ² + ε)^(−1/2). If x_j changes, then
#
# - x_i changes, if i = j;
# - the mean μ changes, for all i;
# - the variance σ² changes, and with it r, for all i.
#
# Take the pieces one by one. The mean: ∂μ/∂x_j = 1/n.
#
# The variance: σ² = (1/n) Σ (x_i − μ)². Its derivative by μ is −(2/n) Σ (x_i − μ) = 0, so only the direct part counts:
#
# $$ \frac{\partial \sigma^2}{\partial x_j} = \frac{2}{n} (x_j - \mu) $$
#
# And r:
#
# $$ \frac{\partial r}{\partial x_j} = -\frac12 (\sigma^2 + \varepsilon)^{-3/2} \cdot \frac{2}{n}(x_j - \mu)
# = -\frac{r^3}{n} (x_j - \mu) = -\frac{r^2}{n}\, \hat x_j $$
#
# Together, with δ_ij = 1 if i = j and 0 otherwise:
#
# $$ \frac{\partial \hat x_i}{\partial x_j} = r \left( \delta_{ij} - \frac1n \right) + (x_i - \mu) \cdot \left( -\frac{r^2}{n} \hat x_j
# \right) = r \left( \delta_{ij} - \frac1n - \frac{\hat x_i \hat x_j}{n} \right) $$
#
# It is a symmetric matrix: the **Jacobian**. Look at it, and check it against what happens if one really moves x_j a
# little.

# %%
n, eps = 12, 1e-5
x = np.random.default_rng(0).normal(size=n)


def normalised(x):
    return (x - x.mean()) / np.sqrt(x.var() + eps)


xhat, r = normalised(x), 1 / np.sqrt(x.var() + eps)
derived = r * (np.eye(n) - 1 / n - np.outer(xhat, xhat) / n)
h = 1e-6
moved = np.array([(normalised(x + h * e) - normalised(x - h * e)) / (2 * h) for e in np.eye(n)]).T

figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for ax, values, name in zip(axes, (derived, derived - moved), ("derived", "derived − measured"), strict=True):
    image = ax.imshow(values, cmap="RdBu", vmin=-abs(values).max(), vmax=abs(values).max())
    ax.set(title=name, xlabel="j: what is moved", ylabel="i: what changes")
    figure.colorbar(image, ax=ax)
plt.show()

# %% [markdown]
# (Mind the colour bars.) The difference is some 10⁻¹⁰, as large as the rounding errors of such a finite difference.
#
# Now the chain rule: ∂L/∂x_j = Σ_i g_i ∂x̂_i/∂x_j. Each of the three terms becomes something simple:
#
# $$ \sum_i g_i \delta_{ij} = g_j, \qquad \sum_i g_i \frac1n = \overline{g}, \qquad
# \sum_i g_i \frac{\hat x_i \hat x_j}{n} = \hat x_j\, \overline{g \hat x} $$
#
# where a bar is a mean along the row. So
#
# $$ \boxed{\; \frac{\partial L}{\partial x_j} = r \left( g_j - \overline{g} - \hat x_j\, \overline{g \hat x} \right) \;} \qquad
# \overline{g} = \frac1n \sum_i g_i, \quad \overline{g \hat x} = \frac1n \sum_i g_i \hat x_i $$
#
# No matrix is needed. Two means along the row, then one line for each element.
#
# ## What it means
#
# If all x of a row move by the same amount, the output does not change: μ moves along. So the gradient can have no part
# in that direction, and g − mean(g) takes it out. If the row is stretched around its mean, the output hardly changes
# either: σ grows along. Stretching moves x in the direction x̂, and the last term takes that out. What is left is at
# right angles to both:

# %%
rng = np.random.default_rng(1)
g = rng.normal(size=n)
grad = r * (g - g.mean() - xhat * (g * xhat).mean())
print(f"sum of g: {g.sum():.3f}, of the gradient: {grad.sum():.1e}")
print(f"g along x̂: {g @ xhat:.3f}, the gradient along x̂: {grad @ xhat:.1e}")

# %% [markdown]
# (The second is not quite 0, because of ε: mean(x̂²) = σ²/(σ² + ε) is a little below 1.)
#
# There is a picture for it. Plot g against x̂ and draw the straight line that fits best. Its height at 0 is mean(g), its
# slope is mean(g x̂). What the line does not explain is the gradient (divided by r):

# %%
figure, ax = plt.subplots(figsize=(7, 3))
line = g.mean() + xhat * (g * xhat).mean()
ax.vlines(xhat, line, g, color="#c8401a", label="gradient / r")
ax.plot(xhat, g, "o", color="#1b4f8a", label="g")
ends = np.array([xhat.min(), xhat.max()])
ax.plot(ends, g.mean() + ends * (g * xhat).mean(), color="grey", label="mean(g) + x̂ mean(g x̂)")
ax.set(xlabel="x̂", title="The gradient is what a straight line leaves over")
ax.legend(fontsize=8)
plt.show()
print("slope and height of NumPy's best line:", *np.polyfit(xhat, g, 1))
print("mean(g x̂) and mean(g):               ", (g * xhat).mean(), g.mean())

# %% [markdown]
# <details><summary><b>Question.</b> A row has n = 1. What is its gradient?</summary>
#
# 0: x̂ is always 0, whatever x. In the formula: g − mean(g) = 0 and x̂ = 0.
# </details>
#
# <details><summary><b>Question.</b> What is the formula for RMSNorm?</summary>
#
# There is no mean, so the path through μ is missing: r (g − x̂ mean(g x̂)), with x̂ = x r. Derive it: ∂r/∂x_j is again
# −r² x̂_j/n.
# </details>
#
# ## How it is computed
#
# The forward has saved x, μ and r. For each row:
#
# 1. **First pass.** Each thread adds up g and g x̂ over its share; then the warp, then the block. Two sums at once.
# 2. **Second pass.** Each thread computes the boxed line for its elements.
#
# A block takes a row, as in the forward. `block_sums` is tutorial 5's stage: it adds up two values over the block, once
# each warp has added up its own by butterflies. `range(start, stop, step)` is the loop that was `while` so far.


# %%
@cuda.jit
def grad_input_kernel(grad_output, x, mean, invvar, weight, grad_input):
    """grad_output, x, grad_input: (n1, n2); mean, invvar: (n1,); weight: (n2,). n1 blocks of 128 threads."""
    buffer = cuda.shared.array((2, 4), float32)  # two sums of four warps
    row = cuda.blockIdx.x
    n2 = x.shape[1]
    mu = mean[row]
    r = invvar[row]

    # First pass: both sums of the row.
    sum_g = float32(0)
    sum_gx = float32(0)
    for column in range(cuda.threadIdx.x, n2, 128):
        g = grad_output[row, column] * weight[column]
        xhat = (x[row, column] - mu) * r
        sum_g += g
        sum_gx += g * xhat
    sum_g, sum_gx = block_sums(warp_sum_butterfly(sum_g), warp_sum_butterfly(sum_gx), buffer)
    mean_g = sum_g / float32(n2)
    mean_gx = sum_gx / float32(n2)

    # Second pass: the boxed line.
    for column in range(cuda.threadIdx.x, n2, 128):
        g = grad_output[row, column] * weight[column]
        xhat = (x[row, column] - mu) * r
        grad_input[row, column] = r * (g - mean_g - xhat * mean_gx)


# %% [markdown]
# ## Is it right?
#
# The truth in float64, and the bound for this way of adding: at most ⌈n2/128⌉ terms in a thread, then 5 + 2 levels of
# merges. The kernel was handed μ and r rounded to float32; the bound knows that.


# %%
def problem(n1, n2, seed=0):
    rng = np.random.default_rng(seed)
    x, dy = rng.normal(size=(2, n1, n2)).astype(f32)
    weight = rng.normal(size=n2).astype(f32)
    _, mean, invvar = oracle.layer_norm(x, n2, weight)
    return dy, x, mean.astype(f32), invvar.astype(f32), weight


for n2 in (1, 2, 33, 127, 129, 500):
    dy, x, mean, invvar, weight = problem(3, n2)
    got = np.full(x.shape, np.nan, f32)
    launch(grad_input_kernel, 3, 128, dy, x, mean, invvar, weight, got)
    how = oracle.Arithmetic(
        row_terms=-(-n2 // 128), row_merges=7, column_terms=1, column_merges=0, statistics="welford"
    )
    truth = oracle.layer_norm_backward(dy, x, n2, weight).grad_input
    bound = oracle.layer_norm_backward_bound(dy, x, n2, weight, None, 1e-5, how).grad_input
    used = oracle.assert_within(got, truth, bound, "grad_input")
    print(f"n2 = {n2:4}: largest error {np.abs(got - truth).max():.1e}, {used:.0%} of its bound")

# %% [markdown]
# Would that test notice a mistake? Let us make one: forget the mean of g. (It is what one gets by copying RMSNorm's
# formula.)

# %%
wrong = got + (invvar[:, None] * (dy * weight).mean(axis=1, keepdims=True)).astype(f32)
try:
    oracle.assert_within(wrong, truth, bound, "grad_input")
except AssertionError as error:
    print(error)

# %% [markdown]
# And are there races?

# %%
print(sanitize(grad_input_kernel)[3, 128](dy, x, mean, invvar, weight, got))

# %% [markdown]
# ## What it moves
#
# The least: read dy and x, write the gradient: 3 n1 n2 elements. This kernel reads dy and x twice. Count for a problem of
# 4 rows and 512 columns:

# %%
dy, x, mean, invvar, weight = problem(4, 512)
counted = trace(grad_input_kernel)[4, 128](dy, x, mean, invvar, weight, np.empty_like(x))
for name in ("grad_output", "x", "weight", "mean", "invvar"):
    reads = counted.array(name).counted(stores=False)
    print(f"{name:12} each element is loaded {reads.min()} to {reads.max()} times")

# %% [markdown]
# `weight`: 4 rows, twice each. `mean` and `invvar`: every thread of a row's block loads the same element. In a request,
# all lanes want the same address, so it is one sector:

# %%
_ = counted.draw_sectors(lesson.line(grad_input_kernel, "r = invvar[row]"), "ld", "invvar")

# %% [markdown]
# A row of 4,096 float32 is 16 KiB. Between the passes it may stay in the L1 cache, or not. The fast steps do not rely
# on the cache. They keep the row in registers or shared memory: `normlab/kernels/backward/step_2_fused.py` and
# `step_3_pipelined.py`. What that brought on an H200 in bfloat16, n2 = 4096, with all three gradients (the words of the
# last two are those of tutorial 12):

# %%
for step, reached in zip(LADDERS["backward"], lesson.ladder("backward").values(), strict=True):
    print(f"{step.name:15} {reached:.2f} of a copy's speed   {step.summary}")

# %% [markdown]
# ## The same, in stages
#
# normlab's own kernels do not write these lines again. Two stages have them, for one element each: `row_terms` gives g
# and g x̂, and `input_gradient` the boxed line. Here is the first one (`normalised_from_input` is (x − μ) r):

# %%
print(lesson.source(row_terms))

# %% [markdown]
# `saved` is x, `weight` and `gamma` are γ, and `weighted` is g. The stage takes more arguments than our kernel needs,
# because it serves more kernels: `mean` is None for RMSNorm, and `memory_efficient` and `bias` are for [tutorial
# 9](09_recompute.ipynb), where x̂ comes from the output. The compiler knows `None` and `False`, and leaves out what they
# switch off.
#
# One thing is different: the stages load `mean[row]` and `invvar[row]` for each element, where our kernel loads them
# once. In the *first* loop that costs nothing: nothing changes these values there, so the compiler takes the loads out
# of the loop. In the *second* loop it cannot. The loop stores into `grad_input`, and for all the compiler knows that
# could be the same memory. The fast steps therefore load both once a row, as we did.
#
# <details><summary><b>Question.</b> apex's <code>cuComputeGradInput</code> uses butterflies here and rotations in the forward. Why
# might the butterfly be the better choice here?</summary>
#
# a + b is b + a to the last bit, so with a butterfly all lanes get the same bits, and no lane is special. Merging moments,
# as in the forward, is not symmetric in its last bits.
# </details>
#
# <details><summary><b>Question.</b> dy is the same for all rows and columns, say 1, and γ = 1. What is the gradient?</summary>
#
# g = 1, mean(g) = 1, and mean(g x̂) = mean(x̂) = 0. So it is 0: the sum of a normalised row is always 0, whatever x.
# </details>
#
# ## Here

# %%
n1, n2 = (16384, 4096) if use_gpu() else (4, 512)
dy, x, mean, invvar, weight = (np.ones(shape, f32) for shape in ((n1, n2), (n1, n2), n1, n1, n2))
dy, x, mean, invvar, weight, got = lesson.on_device(dy, x, mean, invvar, weight, np.ones((n1, n2), f32))
took = lesson.timed(lambda: launch(grad_input_kernel, n1, 128, dy, x, mean, invvar, weight, got))
print("grad_input:", took, f"({3 * 4 * n1 * n2 / took.seconds / 1e12:.2f} TB/s of what must move)" if use_gpu() else "")

# %% [markdown]
# ## What you have seen
#
# - x̂ depends on x directly, through μ and through σ. The Jacobian is r (δ − 1/n − x̂x̂/n); with the chain rule, two means are
#   all that is needed.
# - The gradient has no part along (1, …, 1), and next to none along x̂.
# - Two passes over the row: sums, then elements.
# - A stage holds the lines that several kernels need. It takes more arguments than one kernel alone would.
#
# ## Exercise
#
# The course's exercise 16: write `grad_input`. `normlab course check 16` tries it on rows of length 1, too. Before
# that, here: RMSNorm's version. `course.check` tries it.

# %%
from normlab import course
from normlab.stages.block import block_sum


@cuda.jit
def rms_grad_input(grad_output, x, invvars, weight, result):
    """A block of 64 threads per row: grad_output, x, result (rows, columns); invvars (rows,); weight (columns,)."""
    buffer = cuda.shared.array((2, 2), float32)
    # Your lines.


course.check(rms_grad_input, "rms_grad_input")

# %% [markdown]
# <details><summary><b>Solution.</b></summary>
#
# x̂ is x times invvar, and only one mean is taken out: RMSNorm subtracts no mean in the forward pass.
#
# ```python
# @cuda.jit
# def rms_grad_input(grad_output, x, invvars, weight, result):
#     """A block of 64 threads per row: grad_output, x, result (rows, columns); invvars (rows,); weight (columns,)."""
#     buffer = cuda.shared.array((2, 2), float32)
#     row = cuda.blockIdx.x
#     invvar = invvars[row]
#     sum_gx = float32(0)
#     for column in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
#         sum_gx += grad_output[row, column] * weight[column] * (x[row, column] * invvar)
#     mean_gx = block_sum(warp_sum_butterfly(sum_gx), buffer) / float32(x.shape[1])
#     for column in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
#         g = grad_output[row, column] * weight[column]
#         result[row, column] = (g - x[row, column] * invvar * mean_gx) * invvar
# ```
# </details>
#
# Next: [8. Down the columns](08_columns.ipynb).
