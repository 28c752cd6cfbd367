# %% [markdown]
# # 2. Mean and variance: two passes, a trap, and Welford's step
#
# **Aim.** Compute the mean and variance of a row in one pass over it, without losing digits; and see why the formula
# that most people would try loses all of them.
#
# **Before.** Python and NumPy. From [tutorial 1](01_threads.ipynb): what a kernel is.
#
# **Time.** 30 minutes.

# %%
import matplotlib.pyplot as plt
import numpy as np

from normlab import oracle
from normlab.engine import cast, cuda, float32, launch, load, store, use_gpu
from normlab.learn import lesson
from normlab.stages import welford_step

lesson.begin()

# %% [markdown]
# ## What LayerNorm needs
#
# A LayerNorm takes a row x of n values and makes of it
#
# $$ y_i = \frac{x_i - \mu}{\sqrt{\sigma^2 + \varepsilon}} \gamma_i + \beta_i,
# \qquad \mu = \frac1n \sum_i x_i, \qquad \sigma^2 = \frac1n \sum_i (x_i - \mu)^2 $$
#
# μ is the **mean**, σ² the **variance**. (It divides by n, not n − 1. Statisticians call that biased. LayerNorm is
# defined so: Ba, Kiros and Hinton 2016.) ε is small and guards against a division by 0. γ and β are learned.
#
# Everything hard about the kernel is in these two sums.
#
# ## Two passes
#
# The definition, as it stands: one pass for μ, then a second one for σ². The input is float32, and so is every
# intermediate result; that is what a GPU is fast at.

# %%
f32 = np.float32


def two_pass(x):
    total = f32(0)
    for value in x:
        total += value
    mean = total / f32(len(x))
    squares = f32(0)
    for value in x:
        squares += (value - mean) * (value - mean)
    return mean, squares / f32(len(x))


x = np.random.default_rng(0).normal(loc=5, scale=2, size=1000).astype(f32)
print("two passes:    ", *two_pass(x))
print("NumPy, float64:", x.mean(dtype=np.float64), x.var(dtype=np.float64))

# %% [markdown]
# Good: six digits, and float32 has seven. But it reads x twice. On a GPU reading is what costs. So one would like to
# have both sums after one pass.
#
# ## The formula that suggests itself
#
# Multiply out:
#
# $$ \frac1n \sum (x_i - \mu)^2 = \frac1n \sum x_i^2 - 2 \mu \cdot \frac1n \sum x_i + \mu^2
# = \frac1n \sum x_i^2 - \mu^2 = E[x^2] - E[x]^2 $$
#
# Now both sums can run side by side. The algebra is right.


# %%
def one_pass_naive(x):
    total = squares = f32(0)
    for value in x:
        total += value
        squares += value * value
    mean = total / f32(len(x))
    return mean, squares / f32(len(x)) - mean * mean


print("one pass:      ", *one_pass_naive(x))

# %% [markdown]
# It seems to work. Now move all values up by 10,000. The variance is a property of the differences, so it must not
# change.

# %%
shifted = x + f32(10_000)
print("two passes:    ", two_pass(shifted)[1])
print("one pass:      ", one_pass_naive(shifted)[1])
print("NumPy, float64:", shifted.var(dtype=np.float64))

# %% [markdown]
# The one-pass formula has lost everything. Depending on the data it may even come out **negative**, and then the square
# root gives NaN.
#
# ### Why
#
# A float32 keeps 24 binary digits of a number. (The rest of its 32 bits say how large it is, and its sign.) So storing a
# number r rounds it by up to u·|r| with **u = 2⁻²⁴ ≈ 6 · 10⁻⁸**. (That u is called the **unit roundoff**.)
#
# E[x²] is about μ² + σ². It is held with an error of about u·μ². Then μ² is subtracted, and what is left is σ². The
# *result* is small, but the *error* is still u·μ². Relative to the result it is
#
# $$ \frac{u \mu^2}{\sigma^2} = u \kappa^2 \qquad \text{with} \quad \kappa = \frac{|\mu|}{\sigma} $$
#
# κ is how many standard deviations the row is away from 0. At κ = 4096 = 2¹², κ² = 2²⁴ = 1/u: no digit is left. With
# two passes, the mean is subtracted *before* squaring. Its own error d ≈ uμ enters only as d² (the deviations from the
# true mean add up to 0, so there is no first-order term). So the relative error is about (uκ)², plus the roundings of
# the sum.
#
# Let us look at that.


# %%
def errors(method, kappas, n=256):
    found = []
    for kappa in kappas:
        data = (np.random.default_rng(1).normal(size=n) + kappa).astype(f32)
        truth = data.astype(np.float64).var()
        found.append(abs(method(data)[1] - truth) / truth)
    return np.maximum(found, 1e-9)


u = 2.0**-24
kappas = 2.0 ** np.arange(0, 20)
figure, ax = plt.subplots()
ax.loglog(kappas, errors(one_pass_naive, kappas), "s-", label="E[x²] − E[x]²")
ax.loglog(kappas, errors(two_pass, kappas), "o-", label="two passes")
ax.loglog(kappas, u * kappas**2, ":", color="grey", label="u κ²")
ax.axhline(1, color="black", linewidth=0.8)
ax.text(1.2, 1.6, "above this line, no digit is right", fontsize=8)
ax.set(xlabel="κ = mean / standard deviation", ylabel="relative error of the variance", ylim=(1e-9, 1e6))
ax.legend(loc="lower right")
plt.show()

# %% [markdown]
# The law u κ² fits: the squares follow the dotted line. Do such rows occur? The input of a LayerNorm is whatever the
# layers before it have made, and nothing keeps its mean near 0. A library cannot ask its users to keep κ small.
#
# <details><summary><b>Question.</b> Would it help to add up in float64?</summary>
#
# Yes: then u = 2⁻⁵³, and κ may go up to 10⁷ or so. But float64 arithmetic is slow on GPUs (half as fast at best, 1/64
# on consumer cards), and there is a better way.
# </details>
#
# ## Welford's step
#
# Welford (1962) asked: how do mean and sum of squared deviations *change* if one value is added? Write $\mu_k$ for the
# mean of the first k values, and $M_k = \sum_{i \le k} (x_i - \mu_k)^2$. (Code calls it `m2`. Variance is m2 / count.)
#
# **The mean.** $k \mu_k = (k-1) \mu_{k-1} + x_k$. Divide by k:
#
# $$ \mu_k = \mu_{k-1} + \frac{x_k - \mu_{k-1}}{k} $$
#
# **The squares.** Let δ = x_k − μ_{k−1}, so that the mean moves by δ/k. The old values' squares are now taken around a
# point that is δ/k away from their own mean. Deviations from their own mean add up to 0, so this adds exactly
# (k − 1)(δ/k)². The new value adds (x_k − μ_k)² = (δ − δ/k)² = δ² ((k−1)/k)². Together:
#
# $$ M_k - M_{k-1} = \delta^2 \left( \frac{k-1}{k^2} + \frac{(k-1)^2}{k^2} \right) = \delta^2 \, \frac{k-1}{k}
# = \delta \cdot \left( \delta - \frac{\delta}{k} \right) = (x_k - \mu_{k-1}) (x_k - \mu_k) $$
#
# So the update is: old deviation times new deviation. Both have the same sign, so m2 never shrinks, and never gets
# negative. And nothing of the size of μ² ever appears.
#
# normlab calls the small functions that its kernels are made of **stages**. This is the first one:

# %%
print(lesson.source(welford_step))

# %% [markdown]
# `device=True` makes it a **device function**: kernels call it, and each thread runs it with its own numbers. The Python
# function itself is still there as `.py_func`, so one can also call it here.


# %%
def welford(x):
    mean = m2 = count = f32(0)
    for value in x:
        mean, m2, count = welford_step.py_func(value, mean, m2, count)
    return mean, m2 / count


print("Welford, moved by 10,000:", welford(shifted)[1], " truth:", shifted.var(dtype=np.float64))
print("Welford, not moved:      ", welford(x)[1], " truth:", x.var(dtype=np.float64))

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
mean = m2 = count = f32(0)
steps = []
for value in x[:200]:
    mean, m2, count = welford_step.py_func(value, mean, m2, count)
    steps.append((mean, m2 / count))
axes[0].plot(x[:200], ".", color="lightgrey", label="values")
axes[0].plot([one for one, _ in steps], label="running mean")
axes[0].plot(np.sqrt([one for _, one in steps]), label="running standard deviation")
axes[0].set(xlabel="values seen", title="What Welford knows on the way")
axes[0].legend(fontsize=8)
for method, look in ((one_pass_naive, "s-"), (two_pass, "o-"), (welford, "^-")):
    axes[1].loglog(kappas, errors(method, kappas), look, label=method.__name__, markersize=4)
axes[1].loglog(kappas, u * kappas, ":", color="grey", label="u κ")
axes[1].set(xlabel="κ", ylabel="relative error of the variance", title="One pass, and digits kept", ylim=(1e-9, 1e6))
axes[1].legend(fontsize=8)
plt.show()

# %% [markdown]
# Welford's error grows like u κ: each running mean is rounded by about u μ, and it is multiplied by a deviation of
# about σ. Better than u κ² by a factor of κ; not as good as two passes. (Chan, Golub and LeVeque 1983 derive all
# three.)
#
# <details><summary><b>Question.</b> At κ = 2¹⁹, how many correct digits do you expect from Welford?</summary>
#
# u κ = 2⁻²⁴ · 2¹⁹ = 2⁻⁵ ≈ 0.03: one or two digits. But the input itself is float32. At κ = 2¹⁹ neighbouring float32
# near the mean are 1/16 of a standard deviation apart, so the data hardly has more to give.
# </details>
#
# ## On the GPU
#
# A thread per row, Welford over its columns. `load(x, index)` reads an element in the precision of the computation
# (float16 becomes float32), `store` rounds on the way back, and `cast(0, invvar)` is a 0 of the same type as `invvar`'s
# elements. `invvar` is $1/\sqrt{\sigma^2 + \varepsilon}$: what LayerNorm multiplies by.

# %%
import math


@cuda.jit
def moments_of_rows(x, eps, mean, invvar):
    """x: (n1, n2); mean, invvar: (n1,), float32."""
    row = cuda.grid(1)
    if row < x.shape[0]:
        running_mean = m2 = count = cast(0, invvar)
        for column in range(x.shape[1]):
            running_mean, m2, count = welford_step(load(x, (row, column)), running_mean, m2, count)
        store(mean, row, running_mean)
        store(invvar, row, float32(1) / math.sqrt(m2 / count + eps))


x = (np.random.default_rng(2).normal(size=(32, 200)) + 300).astype(f32)  # κ = 300
mean, invvar = np.empty(32, f32), np.empty(32, f32)
launch(moments_of_rows, 1, 32, x, f32(1e-5), mean, invvar)

# %% [markdown]
# ## How wrong may it be?
#
# One could compare with a tolerance such as 1e-5. But a tolerance that was only guessed is either too loose, so that
# mistakes pass, or too tight, so that right kernels fail. normlab derives a **bound** from how the kernel computes, and
# compares with the truth in float64. The part of normlab that knows truth and bound is called the **oracle**.

# %%
truth = oracle.layer_norm(x, 200)
arithmetic = oracle.Arithmetic(row_terms=200, row_merges=0, column_terms=1, column_merges=0, statistics="welford")
bound = oracle.layer_norm_bound(x, 200, None, None, 1e-5, arithmetic)

for name, got in (("mean", mean), ("invvar", invvar)):
    want, allowed = getattr(truth, name), getattr(bound, name)
    used = oracle.assert_within(got, want, allowed, name)
    print(f"{name:7} worst error {np.abs(got - want).max():.1e}, bound {allowed.max():.1e}, used {used:.1%} of it")

# %% [markdown]
# `Arithmetic` says it: 200 terms of a row, one after another, by Welford, with no merges. (Merges are for the next
# tutorial, columns for [tutorial 8](08_columns.ipynb).) That is all that the oracle needs to know. The bound holds for every
# input, also the nastiest. Typical inputs use a small part of it, because roundings go up and down and mostly cancel.
#
# [Tutorial 10](10_testing.ipynb) is about such tests.
#
# ## What it costs
#
# Welford's step has a **division**, and every step needs the result of the one before. A division is many instructions.
# Here are two steps of the forward ladder, on an H200. The one with Welford reads its rows twice: for the moments, and
# for the output. (It is the kernel of **apex**, NVIDIA's library of fast kernels for PyTorch, some of which normlab
# rebuilds.) The other one reads its rows three times and only adds. **bfloat16** is a float of 16 bits: as large a
# range as float32, fewer digits, and half as many bytes to move.

# %%
from normlab.kernels import LADDERS, ForwardProblem

for step in LADDERS["forward"]:
    if step.name in ("warp_shuffle", "apex"):
        half, single = lesson.measured(step)
        print(f"{step.name:13} {step.summary:45} bfloat16 {half:.2f}, float32 {single:.2f} of a copy's speed")

# %% [markdown]
# One reading less, and no faster; in bfloat16 even slower. Remember that when you hear "one pass is faster". It depends
# on what the pass does. The fastest steps of the ladder keep the row in registers (a thread's own variables), where a
# second pass reads no memory, and use the two-pass formula. Welford stays the way to go where the data really comes only
# once, or in pieces.
#
# <details><summary><b>Question.</b> Why is <code>count</code> a float32, and not an int?</summary>
#
# It is divided by, and mixing an int with a float32 makes the compiler compute in float64. A float32 counts exactly up
# to 2²⁴ = 16.8 million: rows longer than that would need more.
# </details>
#
# <details><summary><b>Question.</b> All values of a row are equal, say 0.1. What does Welford give as m2? And
# <code>one_pass_naive</code>?</summary>
#
# Welford: after the first step the mean is exactly the value, every δ is 0, so m2 is exactly 0. The naive formula
# leaves a rounding error, and it may be negative.
# </details>

# %%
constant = np.full(1000, 0.1, f32)
print("Welford", welford(constant)[1], " naive", one_pass_naive(constant)[1], " two passes", two_pass(constant)[1])

# %% [markdown]
# ## Here
#
# The kernel above beside the ladder's first step. Both have a thread for each row. The ladder's step reads the row three
# times, only adds, and writes the output, too.

# %%
n1, n2 = (65536, 1024) if use_gpu() else (32, 200)
x, weight, bias, output = (np.ones(shape, f32) for shape in ((n1, n2), n2, n2, (n1, n2)))
x, weight, bias, output, mean, invvar = lesson.on_device(x, weight, bias, output, np.ones(n1, f32), np.ones(n1, f32))
print(
    "Welford, moments only:     ",
    lesson.timed(lambda: launch(moments_of_rows, n1 // 32, 32, x, f32(1e-5), mean, invvar)),
)
step = LADDERS["forward"][0]
problem = ForwardProblem(x, weight, bias, f32(1e-5), output, mean, invvar)
print(
    "two passes, and the output:",
    lesson.timed(lambda: step.run(launch, None, problem)),  # None: it needs no scratch memory
)

# %% [markdown]
# ## What you have seen
#
# - E[x²] − E[x]² has relative error u κ². It is the wrong formula for float32.
# - Two passes are the most accurate; Welford's step needs one pass and has error u κ.
# - A stage is a function that kernels call, and that one can test alone.
# - Errors are held against derived bounds, not against tolerances.
#
# ## Exercise
#
# The course's exercise 7: write `welford_step` yourself. `normlab course check 7` has rows with large κ, which the
# textbook's formula does not survive. Before that, here: the two passes of this tutorial, as a kernel with a thread
# for each row. `course.check` tries it.
#
# And in which place would `one_pass_naive` break if x were float16, with values up to 300? (Largest float16: 65,504.)

# %%
from normlab import course


@cuda.jit
def two_pass(x, means, variances):
    """A thread per row: x is (rows, columns), means and (biased) variances are (rows,)."""
    # Your lines.


course.check(two_pass, "two_pass")

# %% [markdown]
# <details><summary><b>Solution.</b></summary>
#
# Two loops, and the second one needs the first one's result. The sum of squares is a sum of squared deviations, so
# nothing large is subtracted. In float16 `one_pass_naive` breaks at once: 300² is 90,000, and that single square is
# infinity already.
#
# ```python
# @cuda.jit
# def two_pass(x, means, variances):
#     """A thread per row: x is (rows, columns), means and (biased) variances are (rows,)."""
#     row = cuda.grid(1)
#     if row < x.shape[0]:
#         columns = float32(x.shape[1])
#         total = float32(0)
#         for column in range(x.shape[1]):
#             total += x[row, column]
#         mean = total / columns
#         squares = float32(0)
#         for column in range(x.shape[1]):
#             delta = x[row, column] - mean
#             squares += delta * delta
#         means[row] = mean
#         variances[row] = squares / columns
# ```
# </details>
#
# Next: [3. Two groups become one](03_chan.ipynb).
