# %% [markdown]
# # 3. Two groups become one: Chan's merge
#
# **Aim.** Let many threads find the mean and variance of one row together: each those of its own share, and then merge
# the shares. Understand the case of an empty share, and why a tree is better than a chain.
#
# **Before.** [Tutorial 2](02_moments.ipynb): mean, m2, count; u = 2⁻²⁴.
#
# **Time.** 25 minutes.

# %%
import matplotlib.pyplot as plt
import numpy as np

from normlab.engine import cast, cuda, launch, load, store, use_gpu
from normlab.learn import lesson
from normlab.stages import chan_merge, welford_step

lesson.begin()
f32 = np.float32

# %% [markdown]
# ## The question
#
# Welford's step takes one value after another. A row of 4,096 values would keep one thread busy for 4,096 steps, while
# thousands of threads have nothing to do. So deal the row out: 128 threads, 32 values each. Each thread runs Welford on
# its own values and ends with its own **(mean, m2, count)**; in short, the **moments** of its values. What are the moments
# of all?
#
# ## The formula, derived
#
# Let groups a and b have n_a and n_b values, and let n = n_a + n_b and δ = mean_b − mean_a.
#
# **The mean.** The sum of all values is n_a mean_a + n_b mean_b. Divide by n, and write n_a = n − n_b:
#
# $$ \text{mean} = \frac{n_a\, \text{mean}_a + n_b\, \text{mean}_b}{n} = \text{mean}_a + \delta\, \frac{n_b}{n} $$
#
# So a's mean moves towards b's, by b's share of the values.
#
# **The squares.** m2_a is taken around mean_a, but should be taken around the new mean, which is δ n_b/n away. A
# group's deviations from its own mean add up to 0. So moving the point by d adds exactly n_a d² (the same argument as
# for Welford's step). For group b the new mean is δ n_a/n away. Together:
#
# $$ m_2 = m_{2a} + m_{2b} + n_a \left(\delta \frac{n_b}{n}\right)^2 + n_b \left(\delta \frac{n_a}{n}\right)^2
# = m_{2a} + m_{2b} + \delta^2\, \frac{n_a n_b}{n} $$
#
# (The two last terms have the factor δ² n_a n_b / n² in common. What is left, n_b + n_a, is n.) This is Chan, Golub and
# LeVeque's formula, 1983.
#
# In words: the spread of all is the spread within a, plus that within b, plus that *between* their means.

# %%
rng = np.random.default_rng(3)
a, b = rng.normal(2, 0.6, size=40), rng.normal(5, 0.9, size=25)
figure, ax = plt.subplots(figsize=(9, 2.4), layout="constrained")
for height, group in ((2, a), (1, b), (0, np.concatenate([a, b]))):
    ax.plot(group, np.full(len(group), height), "|", color="grey")
    ax.errorbar(group.mean(), height, xerr=group.std(), fmt="o", capsize=5, color="#1b4f8a")
ax.set(
    yticks=[0, 1, 2], yticklabels=["both", "b", "a"], ylim=(-0.6, 2.6), title="Mean ± standard deviation of two groups"
)
plt.show()

# %% [markdown]
# The stage, and a check against NumPy on these two groups:

# %%
print(lesson.source(chan_merge))


# %%
def moments(values):
    """(mean, m2, count) of a group, by Welford."""
    found = f32(0), f32(0), f32(0)
    for value in values.astype(f32):
        found = welford_step.py_func(value, *found)
    return found


merged = chan_merge.py_func(*moments(a), *moments(b))
both = np.concatenate([a, b])
print("merged:", *merged)
print("NumPy: ", both.mean(), both.var() * len(both), len(both))

# %% [markdown]
# <details><summary><b>Question.</b> Let b be one value x: mean_b = x, m2_b = 0, n_b = 1. What does the formula become?
# </summary>
#
# mean = mean_a + (x − mean_a)/n, which is Welford's first line. And δ² n_a/n = δ · δ(n − 1)/n = δ (δ − δ/n) = (x −
# mean_a)(x − mean). So Welford's step is Chan's merge with a group of one.
# </details>
#
# ## The empty group
#
# A row of 100 values and 128 threads: 28 threads see nothing. Their count is 0, and so are mean and m2. Sooner or later
# two such groups are merged with each other. Without the `if count > 0`, that divides 0 by 0:


# %%
def merge_without_guard(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    count = count_a + count_b
    delta = mean_b - mean_a
    share_b = count_b / count
    return mean_a + delta * share_b, m2_a + m2_b + delta * (delta * (count_a * share_b)), count


empty = f32(0), f32(0), f32(0)
with np.errstate(invalid="ignore"):
    print("without:", *merge_without_guard(*empty, *empty))
print("with:   ", *chan_merge.py_func(*empty, *empty))
print("a alone:", *chan_merge.py_func(*moments(a), *empty), " =", *moments(a))

# %% [markdown]
# One such NaN, and the whole row is NaN. It happens only for rows shorter than the number of threads, so a test with
# long rows never sees it.
#
# <details><summary><b>Question.</b> The stage multiplies <code>delta * (delta * (count_a * share_b))</code>, and not
# <code>delta * delta * …</code>. When does the order matter?</summary>
#
# If b is empty, its mean is 0, so δ = −mean_a. With mean_a = 10²⁰ the square δ² is 10⁴⁰: infinity in float32 (largest:
# 3.4·10³⁸). Infinity times share_b = 0 is NaN. The other way round, the 0 comes first.
# </details>
#
# ## Equal means should stay equal
#
# apex writes the mean as a weighted average, (n_a/n) mean_a + (n_b/n) mean_b. On paper that is the same. In float32 the
# two shares are rounded, and may not add up to 1. If both means are equal, the result should be that mean. Count how
# often it is not:

# %%
trials = 20_000
rng = np.random.default_rng(4)
mean = rng.normal(size=trials).astype(f32)
count_a, count_b = rng.integers(1, 100, size=(2, trials)).astype(f32)
weighted = count_a / (count_a + count_b) * mean + count_b / (count_a + count_b) * mean
corrected = mean + (mean - mean) * (count_b / (count_a + count_b))
print(f"weighted average: {np.mean(weighted != mean):.0%} of equal means are changed")
print(f"correction of a:  {np.mean(corrected != mean):.0%}")

# %% [markdown]
# Why care about one last digit? A row whose values are all equal has variance 0. If merging moves the mean, it gets a
# tiny variance instead, and 1/√(σ² + ε) magnifies it when ε is tiny, too. The stage writes the merge as a correction,
# and a constant row has variance exactly 0.
#
# ## A chain or a tree?
#
# Say there are 32 groups to be merged. One after another is a **chain**: 31 merges, each waiting for the one before. In
# pairs, then pairs of pairs, it is a **tree**: 5 rounds, and all merges of a round can happen at the same time. Drawn
# for 8 groups:

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 3), layout="constrained", sharey=True)
for ax, title in zip(axes, ("Chain: 7 rounds", "Tree: 3 rounds"), strict=True):
    ax.set(title=f"8 groups. {title}", xticks=range(8), yticks=range(8), ylim=(7.3, -0.3), xlabel="group")
    ax.plot(range(8), [0] * 8, "o", color="#1b4f8a")
axes[0].set_ylabel("round")
for turn in range(1, 8):
    axes[0].plot([0, 0, turn], [turn - 1, turn, 0], color="#1b4f8a", linewidth=1)
    axes[0].plot(0, turn, "o", color="#c8401a")
for turn, distance in enumerate((4, 2, 1), start=1):
    for group in range(distance):
        axes[1].plot([group, group, group + distance], [turn - 1, turn, turn - 1], color="#1b4f8a", linewidth=1)
        axes[1].plot(group, turn, "o", color="#c8401a")
plt.show()

# %% [markdown]
# A tree is quicker where there are many workers. It is also **more accurate**. n values take n − 1 additions, in a chain
# as in a tree, and each addition rounds its result once. What differs is how many of these results a value is part of:
#
# - In a chain, the first two values are part of all n − 1 results, the third of n − 2, and the last of one.
# - In a tree over n = 2ᵏ values, each value is part of k = log₂ n results, one in each round.
#
# Each of these roundings changes the result by a factor of at most 1 ± u. So for positive values, the relative error is
# at most (n − 1) u for a chain, and about u log₂ n for a tree. Plain sums show it well:


# %%
def tree_sum(values):
    while len(values) > 1:
        half = len(values) // 2
        values = values[:half] + values[half:]  # float32, all pairs of a round at once
    return values[0]


sizes = 2 ** np.arange(4, 21)
chain, tree = [], []
for n in sizes:
    values = np.random.default_rng(n).uniform(size=n).astype(f32)
    truth = values.sum(dtype=np.float64)
    chain.append(abs(np.cumsum(values)[-1] - truth) / truth)  # cumsum adds one after another
    tree.append(abs(tree_sum(values) - truth) / truth)
u = 2.0**-24
figure, ax = plt.subplots()
ax.loglog(sizes, np.maximum(chain, 1e-9), "s-", label="chain")
ax.loglog(sizes, np.maximum(tree, 1e-9), "o-", label="tree")
ax.loglog(sizes, sizes * u, ":", color="C0", label="n u")
ax.loglog(sizes, np.log2(sizes) * u, ":", color="C1", label="u log₂ n")
ax.set(xlabel="values", ylabel="relative error of the sum", title="Sums of n float32")
ax.legend()
plt.show()

# %% [markdown]
# The dotted lines are these bounds (n u, which is a little more than (n − 1) u): nothing may be above them. The chain's
# errors grow; the tree's stay where they are. That
# is why normlab's oracle ([tutorial 2](02_moments.ipynb)) asks for two numbers: how many **terms** one thread adds up in
# a chain, and how many levels of **merges** follow.
#
# ## Two kernels
#
# Now on the GPU, with what we know so far. First kernel: 64 threads share one row. Thread t takes values t, t + 64,
# t + 128, …, so that neighbours read neighbours ([tutorial 1](01_threads.ipynb)). Each leaves three numbers in global
# memory. Second kernel: one thread merges them, in a chain.


# %%
@cuda.jit
def moments_of_shares(x, mean, m2, count):
    """x: (n,); mean, m2, count: (threads,), float32."""
    thread = cuda.threadIdx.x
    own_mean = own_m2 = own_count = cast(0, mean)
    i = thread
    while i < x.shape[0]:
        own_mean, own_m2, own_count = welford_step(load(x, i), own_mean, own_m2, own_count)
        i += cuda.blockDim.x
    store(mean, thread, own_mean)
    store(m2, thread, own_m2)
    store(count, thread, own_count)


@cuda.jit
def merge_shares(mean, m2, count, result):
    """result: (3,): mean, m2 and count of all."""
    all_mean = all_m2 = all_count = cast(0, mean)
    for k in range(mean.shape[0]):
        all_mean, all_m2, all_count = chan_merge(
            all_mean, all_m2, all_count, load(mean, k), load(m2, k), load(count, k)
        )
    store(result, 0, all_mean)
    store(result, 1, all_m2)
    store(result, 2, all_count)


def moments_by_kernels(x):
    mean, m2, count = np.empty((3, 64), f32)
    result = np.empty(3, f32)
    launch(moments_of_shares, 1, 64, x, mean, m2, count)
    launch(merge_shares, 1, 1, mean, m2, count, result)
    return result


for n in (4000, 40):  # the second one has fewer values than threads
    x = (np.random.default_rng(n).normal(size=n) + 1000).astype(f32)
    mean, m2, count = moments_by_kernels(x)
    print(f"n = {n}: variance {m2 / count:.5f}, truth {x.var(dtype=np.float64):.5f}, count {count:.0f}")

# %% [markdown]
# It is right, and it is clumsy: a second launch, and a trip through global memory for three numbers a thread. (The
# second launch is needed: only when a kernel has ended is it sure that all its threads have stored.) The lanes of a warp
# can do better, without any memory. That is the next tutorial.
#
# ## The same formula elsewhere
#
# Nothing in the merge knows where the groups come from. In **batch norm**, μ and σ² are those of a channel over all
# images, and the images may be on different machines. Each machine finds the moments of its own images and sends three
# numbers, and all merge them. Here is normlab's batch norm, on one machine; its threads merge their shares with this very
# stage:

# %%
from normlab import family

images = np.random.default_rng(5).normal(loc=3, size=(4, 2, 6, 6)).astype(f32)  # (images, channels, height, width)
_, mean, _ = family.batch_norm(images)
print("mean of each channel:", mean, " NumPy:", images.mean(axis=(0, 2, 3)))

# %% [markdown]
# <details><summary><b>Question.</b> A colleague averages the variances of two machines. When is that right?</summary>
#
# If both have equally many values *and* equal means. If the counts differ, the average has to be weighted by them. If
# the means differ, the term δ² n_a n_b / n, the spread between the machines, is missing.
# </details>
#
# ## Here
#
# How long do the two kernels take? (One block keeps one of 132 multiprocessors busy, so a GPU is not at its best here.)

# %%
n = 2**24 if use_gpu() else 4000
x, mean, m2, count, result = lesson.on_device(
    np.ones(n, f32), np.zeros(64, f32), np.zeros(64, f32), np.zeros(64, f32), np.zeros(3, f32)
)
print("moments of 64 shares:", lesson.timed(lambda: launch(moments_of_shares, 1, 64, x, mean, m2, count)))
print("merged in a chain:   ", lesson.timed(lambda: launch(merge_shares, 1, 1, mean, m2, count, result)))

# %% [markdown]
# ## What you have seen
#
# - (mean, m2, count) of two groups give that of both: Chan's merge. Welford's step is its smallest case.
# - Two empty groups must merge to an empty group, and not to NaN.
# - Trees have log₂ n rounds, and errors that grow with log₂ n instead of n.
#
# ## Exercise
#
# The course's exercise 8 asks for `chan_merge`, and exercise 9 for its case of count 0: `normlab course check 8` and
# `normlab course check 9`. (The kernel of exercise 9 uses shuffles, which are the next tutorial's. You need not touch
# them.) Before that, here: a thread merges eight groups, some of them empty, with the stage `chan_merge`.
# `course.check` tries it.

# %%
from normlab import course


@cuda.jit
def merge_groups(groups, merged):
    """A thread per set: groups is (sets, 8, 3), merged (sets, 3); the last axis is mean, m2 and count."""
    # Your lines.


course.check(merge_groups, "merge_groups")

# %% [markdown]
# <details><summary><b>Solution.</b></summary>
#
# One group after another is a chain. A tree of 4, 2 and 1 merges is right, too, and rounds less.
#
# ```python
# @cuda.jit
# def merge_groups(groups, merged):
#     """A thread per set: groups is (sets, 8, 3), merged (sets, 3); the last axis is mean, m2 and count."""
#     i = cuda.grid(1)
#     if i < groups.shape[0]:
#         mean = groups[i, 0, 0]
#         m2 = groups[i, 0, 1]
#         count = groups[i, 0, 2]
#         for k in range(1, 8):
#             mean, m2, count = chan_merge(mean, m2, count, groups[i, k, 0], groups[i, k, 1], groups[i, k, 2])
#         merged[i, 0] = mean
#         merged[i, 1] = m2
#         merged[i, 2] = count
# ```
# </details>
#
# Next: [4. Lanes talk: shuffles](04_shuffles.ipynb).
