# %% [markdown]
# # 4. Lanes talk: warp shuffles, by rotation and by butterfly
#
# **Aim.** Bring the 32 results of a warp's lanes together in five steps, with no memory at all. Know two patterns for
# it, and which lanes have the result after each.
#
# **Before.** [Tutorial 1](01_threads.ipynb): warp and lane. [Tutorial 3](03_chan.ipynb): merging moments, trees.
#
# **Time.** 30 minutes.

# %%
import matplotlib.pyplot as plt
import numpy as np

from normlab.engine import cast, cuda, launch, load, store, use_gpu
from normlab.learn import lesson
from normlab.sim import sanitize, trace
from normlab.stages import warp_moments, warp_sum, warp_sum_butterfly, welford_step

lesson.begin()
f32 = np.float32
ALL_LANES = 0xFFFFFFFF

# %% [markdown]
# ## A lane reads another lane's variable
#
# A thread keeps its variables in **registers**. They are the fastest memory there is, and private: no other thread can
# read them. There is one exception. The lanes of a warp execute an instruction together. So there can be an instruction
# in which each lane offers a value and takes one from another lane. That is a **shuffle**:
#
# > `cuda.shfl_sync(mask, value, source)` gives the `value` that lane `source` offers in the same instruction.
#
# `mask` says which lanes take part, a bit each. Here always all 32: `0xFFFFFFFF`, which is 32 ones. All of them must
# reach the instruction.


# %%
@cuda.jit
def look_around(first, neighbour):
    lane = cuda.threadIdx.x
    value = 10 * lane
    first[lane] = cuda.shfl_sync(ALL_LANES, value, 0)  # every lane asks lane 0
    neighbour[lane] = cuda.shfl_sync(ALL_LANES, value, (lane + 1) % 32)  # every lane asks the next one


first, neighbour = np.zeros((2, 32), np.int64)
launch(look_around, 1, 32, first, neighbour)
print("from lane 0:        ", first)
print("from the next lane: ", neighbour)

# %% [markdown]
# ## Rotation
#
# Every lane has a value. We want the sum. Step by step, each lane takes what another lane has, and adds it to its own:
#
# 1. from the lane 1 further on,
# 2. then from the lane 2 further on,
# 3. then 4, 8 and 16; always counting round, modulo 32.
#
# This is what apex does in its forward kernel. The stage:

# %%
print(lesson.source(warp_sum))

# %% [markdown]
# (`1 << level` is 2 to the power of `level`: 1, 2, 4, 8, 16. `& 31` keeps the last five bits, and so is modulo 32.
# `lane_index()` is the number of the lane. `rms_merge` is just a + b; its name is apex's.)
#
# `trace` notes which lane gives a value to which. In each step all 32 lanes take one, which makes 160 arrows. So let us
# draw only those that lead to lane 0 (`to=0`). Time runs down; each step is one shuffle.


# %%
@cuda.jit
def sum_by_rotation(x, total):
    lane = cuda.threadIdx.x
    total[lane] = warp_sum(x[lane])


x = np.random.default_rng(0).uniform(size=32).astype(f32)
by_rotation = np.zeros(32, f32)
counted = trace(sum_by_rotation)[1, 32](x, by_rotation)
_ = counted.draw_tree(to=0)

# %% [markdown]
# It is a tree with 31 arrows, and each lane but lane 0 has one going out. Lane 5 has the same tree, moved by 5 lanes to
# the right and counted round; so has every other lane.
#
# Five steps, because 2⁵ = 32. But is each value counted exactly once, in every lane? Let us follow *which values* a
# lane has in its sum. At the beginning lane i has value i alone, a run of 1. In the first step it takes the next lane's
# run of 1: now it has i and i + 1, a run of 2. In the second step it takes from the lane 2 further on, whose run of 2
# begins where its own ends: a run of 4. So each step doubles the run, without a gap and without an overlap. After five
# steps: a run of 32, which is all values.
#
# The pictures show it: row = lane, column = value, blue = it is in the lane's sum.


# %%
def spread(partner, steps=5):
    """How often each lane has counted each value, after each step: a list of (32, 32) counts."""
    knows = [np.eye(32, dtype=int)]
    for step in range(steps):
        knows.append(knows[-1] + np.array([knows[-1][partner(lane, step)] for lane in range(32)]))
    return knows


def draw_spread(knows, title):
    figure, axes = plt.subplots(1, len(knows), figsize=(11, 2.4), layout="constrained", sharey=True)
    for step, (ax, table) in enumerate(zip(axes, knows, strict=True)):
        ax.imshow(table, cmap="Blues", vmin=0, vmax=max(2, table.max()))
        ax.set(title=f"after {step}", xticks=[])
    axes[0].set_ylabel("lane")
    figure.suptitle(title)
    plt.show()
    print("each lane has counted each value", set(knows[-1].ravel().tolist()), "times")


draw_spread(spread(lambda lane, step: (lane + (1 << step)) % 32), "Rotation: lane i asks lane i + 1, 2, 4, 8, 16")

# %% [markdown]
# Here is a mistake that looks harmless: rotating by 1, 2, 3, 4, 5. Dark blue is counted more than once, white not at all.

# %%
draw_spread(spread(lambda lane, step: (lane + step + 1) % 32), "Wrong: lane i asks lane i + 1, 2, 3, 4, 5")

# %% [markdown]
# ## Butterfly
#
# The other pattern works in pairs. In step one, lane i exchanges with lane i XOR 16; then XOR 8, 4, 2, 1. XOR with a
# power of two flips one bit of the lane's number. So i asks j, and j asks i. `cuda.shfl_xor_sync(mask, value,
# distance)` does it.

# %%
print(lesson.source(warp_sum_butterfly))


@cuda.jit
def sum_by_butterfly(x, total):
    lane = cuda.threadIdx.x
    total[lane] = warp_sum_butterfly(x[lane])


by_butterfly = np.zeros(32, f32)
counted = trace(sum_by_butterfly)[1, 32](x, by_butterfly)
_ = counted.draw_tree(to=0)

# %% [markdown]
# Again only what leads to lane 0: first the upper half of the warp gives to the lower half, then a quarter to a quarter,
# and so on. Every other lane has a tree of the same shape. Which values has a lane after each step?

# %%
draw_spread(spread(lambda lane, step: lane ^ (16 >> step)), "Butterfly: lane i asks lane i XOR 16, 8, 4, 2, 1")

# %% [markdown]
# ## Same sum, not the same bits
#
# After both, every lane holds the sum of all 32. But floating-point addition is not associative: (a + b) + c may differ
# from a + (b + c) in the last bit. Rotation adds in another order in each lane. In the butterfly two partners compute
# a + b and b + a, which *are* the same. So after step one, pairs of lanes agree to the last bit, then fours, and in the
# end all 32.

# %%
print("truth:    ", x.sum(dtype=np.float64))
print("rotation: ", sorted({float(value) for value in by_rotation}))
print("butterfly:", sorted({float(value) for value in by_butterfly}))

# %% [markdown]
# So with the rotation, **use lane 0's result**, in all lanes. (One more shuffle hands it out.) If each lane used its own,
# the elements of one row would be normalised by slightly different means. With the butterfly each lane may use its own.
#
# <details><summary><b>Question.</b> Which pattern would you take to merge moments, and not sums?</summary>
#
# <code>chan_merge(a, b)</code> is written as a correction of a, so it is not symmetric in its last bits. In a butterfly the
# two partners would compute merge(a, b) and merge(b, a). The rotation, as in apex, is fine: its lanes differ anyway, and
# one takes lane 0's. (Or one mends the butterfly: in the stage <code>warp_moments_butterfly</code>, the lower lane's group
# is always a; then all lanes have the same bits again.)
# </details>
#
# <details><summary><b>Question.</b> Many books use <code>shfl_down_sync(mask, value, 16)</code>, then 8, 4, 2, 1: lane i asks
# lane i + 16, and lanes that would ask beyond 31 keep their own. Who has the sum in the end?</summary>
#
# Only lane 0. Lane 31, for example, has taken only its own value, in each of the five steps.
# </details>
#
# ## Moments of a row
#
# Now put together what we have: Welford's step in each lane, then Chan's merge across the warp. `warp_moments` is the
# rotation with three shuffles a step, one for each of mean, m2 and count.


# %%
@cuda.jit
def row_variance(x, variance):
    """A warp a row. x: (n1, n2); variance: (n1,), float32."""
    row = cuda.blockIdx.x
    mean = m2 = count = cast(0, variance)
    column = cuda.threadIdx.x
    while column < x.shape[1]:
        mean, m2, count = welford_step(load(x, (row, column)), mean, m2, count)
        column += 32
    mean, m2, count = warp_moments(mean, m2, count)
    if cuda.threadIdx.x == 0:  # the rotation: lane 0's result is the one to use
        store(variance, row, m2 / count)


x = (np.random.default_rng(1).normal(size=(4, 1000)) + 10_000).astype(f32)
variance = np.zeros(4, f32)
launch(row_variance, 4, 32, x, variance)
print("kernel:", variance)
print("truth: ", x.var(axis=1, dtype=np.float64))

# %% [markdown]
# ## What it costs
#
# A tree over 32 threads could also go through **shared memory** (fast memory that a block has to itself), with a
# barrier in every round. (A **barrier** is a point where all threads of a block wait for each other. The next tutorial
# has more of it.) Compare one warp's sum both ways:

# %%
from normlab.engine import float32
from normlab.stages.block import block_tree_sum


@cuda.jit
def sum_through_memory(x, total):
    buffer = cuda.shared.array(32, float32)
    lane = cuda.threadIdx.x
    total[lane] = block_tree_sum(x[lane], buffer)


x, total = np.ones(32, f32), np.zeros(32, f32)
counted = trace(sum_through_memory)[1, 32](x, total)
counted.compare(trace(sum_by_butterfly)[1, 32](x, total))

# %% [markdown]
# Five shuffles instead of seven barriers and 17 passes over shared memory (the rows with `mem_shared`; what a
# `wavefront` is, the next tutorial says).
#
# ## Mistakes, and who finds them
#
# **A lane is missing.** With 31 threads, the mask still says 32.

# %%
x, total = np.ones(31, f32), np.zeros(31, f32)
print(sanitize(sum_by_butterfly)[1, 31](x, total))

# %% [markdown]
# Lane 15 asks lane 31, which is not there. On a GPU the result would be undefined: perhaps right, perhaps not. So blocks
# have whole warps, and lanes without work take part with a 0 (or with an empty group, tutorial 3).
#
# **A shuffle in a branch.** Here the lower half of the warp waits at one shuffle, and the upper half at another.


# %%
@cuda.jit
def half_of_it_in_a_branch(x, total):
    lane = cuda.threadIdx.x
    value = x[lane]
    if lane < 16:
        value += cuda.shfl_xor_sync(ALL_LANES, value, 1)
    total[lane] = cuda.shfl_sync(ALL_LANES, value, 0)


print(sanitize(half_of_it_in_a_branch)[1, 32](np.ones(32, f32), np.zeros(32, f32)))

# %% [markdown]
# <details><summary><b>Question.</b> A loop <code>while column &lt; n2</code> contains a shuffle. n2 is 1000. What goes
# wrong?</summary>
#
# 1000 = 31 · 32 + 8: in the last turn only lanes 0 to 7 are in the loop. The others never reach the shuffle. In
# <code>row_variance</code> above the shuffles come after the loop, where all lanes are together again.
# </details>
#
# ## Here
#
# Two steps of the forward ladder that differ in this one idea: sums by trees in shared memory, or by shuffles. (Which
# of the two is quicker in the simulator says nothing about a GPU.)

# %%
from normlab.kernels import LADDERS, ForwardProblem

n1, n2 = (16384, 4096) if use_gpu() else (4, 512)
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
for step in LADDERS["forward"][1:3]:
    took = lesson.timed(lambda step=step: step.run(launch, None, problem))  # None: it needs no scratch memory
    print(f"{step.name:13} {took}")

# %% [markdown]
# ## What you have seen
#
# - Shuffles move values between registers of a warp: no memory, no barrier.
# - Rotation and butterfly both take five steps. After the rotation take lane 0's result; after the butterfly, any.
# - All lanes of the mask must take part.
#
# ## Exercise
#
# The course's exercise 10 is a warp sum by rotation, exercise 11 one by butterfly: `normlab course check 10`, `normlab
# course check 11`. Exercise 21, a puzzle about sectors, needs the butterfly, too. Before that, here: a **maximum** by
# butterfly. Is double counting a mistake for a maximum, too? `course.check` tries it.

# %%
from normlab import course


@cuda.jit
def row_max(x, maxima):
    """A warp, which is the block, per row: x and maxima are (rows, 32); every lane writes its row's maximum."""
    # Your lines.


course.check(row_max, "row_max")

# %% [markdown]
# <details><summary><b>Solution.</b></summary>
#
# Double counting is no mistake here: max(a, a) is a. So the rotation would give every lane the maximum, too, and with
# the same bits.
#
# ```python
# @cuda.jit
# def row_max(x, maxima):
#     """A warp, which is the block, per row: x and maxima are (rows, 32); every lane writes its row's maximum."""
#     row = cuda.blockIdx.x
#     lane = cuda.threadIdx.x
#     value = x[row, lane]
#     for level in range(5):
#         value = max(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, 16 >> level))
#     maxima[row, lane] = value
# ```
# </details>
#
# Next: [5. From warps to a block](05_block.ipynb).
