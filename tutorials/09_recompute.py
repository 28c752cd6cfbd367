# %% [markdown]
# # 9. Saving the output: what recomputing costs, where it breaks, and the exact mode
#
# **Aim.** Save the memory of one array per norm, by keeping the output in place of the input. Derive what that costs in
# accuracy, see it break on a real model, and repair it.
#
# **Before.** [Tutorial 7](07_backward.ipynb): the backward pass.
#
# **Time.** 35 minutes.

# %%
import json
from importlib.resources import files

import matplotlib.pyplot as plt
import ml_dtypes  # bfloat16 for NumPy
import numpy as np

import normlab
from normlab import oracle
from normlab.engine import use_gpu
from normlab.learn import lesson
from normlab.stages import clamp_by_magnitude, normalised_from_output

lesson.begin()
f32 = np.float32

# %% [markdown]
# ## Who keeps what
#
# The backward pass of a norm needs x̂. In tutorial 7 it came from the saved input: x̂ = (x − μ) r. So x, an array of n1
# × n2, must stay in memory from the forward pass until the backward pass comes by.
#
# In most language models of today, though, nothing else needs x. Look at the picture: x is the **residual stream**, the
# line that runs through the whole model. It goes past the norm, and the block's result is *added* to it; the gradient
# of an addition needs no saved values. The norm's **output** y, on the other hand, is the input of a linear layer. That
# layer's gradient for its weights is made of y, so y is kept anyway.

# %%
figure, ax = plt.subplots(figsize=(9, 2.2), layout="constrained")
ax.axis("off")
ax.set(xlim=(0, 10), ylim=(0, 3))
for left, bottom, text, colour in (
    (2.2, 0.3, "norm", "#dfe5ec"), (5.2, 0.3, "linear, …", "#dfe5ec"), (8.4, 1.9, "+", "#dfe5ec"),
):  # fmt: skip
    ax.add_patch(plt.Rectangle((left, bottom), 1.3, 0.9, facecolor=colour, edgecolor="grey"))
    ax.text(left + 0.65, bottom + 0.45, text, ha="center", va="center")
arrow = {"arrowstyle": "->", "color": "#1b4f8a", "linewidth": 1.6}
for begin, end in (((0.1, 2.35), (8.4, 2.35)), ((1.2, 2.35), (2.2, 0.75)), ((3.5, 0.75), (5.2, 0.75)),
                   ((6.5, 0.75), (8.9, 1.9)), ((9.7, 2.35), (10, 2.35))):  # fmt: skip
    ax.annotate("", xy=end, xytext=begin, arrowprops=arrow)
ax.text(4.3, 2.5, "residual stream x: an addition keeps nothing", ha="center", color="#c8401a")
ax.text(4.35, 0.95, "y: the linear\nlayer keeps it", ha="center", fontsize=9, color="#1b4f8a")
plt.show()

# %% [markdown]
# So let the norm keep y (which costs nothing: it is the same array) and compute x̂ back from it:
#
# $$ y = \gamma \hat x + \beta \quad\Longrightarrow\quad \hat x = \frac{y - \beta}{\gamma} $$
#
# apex calls this `memory_efficient=True`. It frees one n1 × n2 array per norm.
#
# Where does the backward need x̂? Tutorial 7's formula has it twice: r (g − mean(g) − **x̂** mean(g **x̂**)). In the mean the
# division cancels: g x̂ = dy γ x̂ = dy (y − β). So only the x̂ in front of the mean is divided by γ, and so is the x̂ in
# grad_weight = Σ dy x̂. Keep that in mind for the real model below.
#
# And γ = 0? Then y does not depend on x̂ at all. apex pushes γ away from 0 first, to at least ε, sign kept. That is the
# **clamp**. (ε is the one of the variance; apex takes it for this, too.) The stages:

# %%
print(lesson.source(clamp_by_magnitude))
print()
print(lesson.source(normalised_from_output))

# %% [markdown]
# ## The error law
#
# In exact arithmetic, recomputing is perfect. But y is **stored**, and so rounded. With u_out the unit roundoff of the
# output's dtype (float32: 2⁻²⁴, float16: 2⁻¹¹, bfloat16: 2⁻⁸), the stored value is off by up to
#
# $$ u_{\text{out}} |y| \le u_{\text{out}} (|\beta| + |\gamma \hat x|) $$
#
# Subtracting β does not change this error; dividing by γ magnifies it:
#
# $$ \boxed{\; |\text{error of } \hat x| \le u_{\text{out}}\, \frac{|\beta| + |\gamma \hat x|}{|\gamma|} = u_{\text{out}} \left(
# \left|\frac{\beta}{\gamma}\right| + |\hat x| \right) \;} \qquad (|\gamma| \ge \varepsilon) $$
#
# The part u |x̂| is harmless: storing x̂ itself would cost as much. The part u |β/γ| is the danger. **What matters is
# the bias against the weight.** If β is a thousand times γ, then x̂ loses a factor of a thousand. Where |γ| < ε, the
# clamp adds a second error: x̂ comes back too small, by the factor γ/ε.
#
# Measure it: take many x̂, make y, store it, come back. The lines are the law, for |x̂| = 1. (It holds up to a small
# constant: computing back rounds a few times more.)


# %%
def worst_error(gamma, beta, dtype, eps=1e-5):
    """The largest error of x̂ from an output stored in `dtype`, over many x̂ in [-1, 1]."""
    xhat = np.linspace(-1, 1, 501).astype(f32)
    y = (f32(gamma) * xhat + f32(beta)).astype(dtype)  # the store
    clamped = clamp_by_magnitude.py_func(f32(gamma), f32(eps))  # py_func: the stage as a plain Python function
    back = (y.astype(f32) - f32(beta)) / clamped
    return np.abs(back.astype(np.float64) - xhat).max()


gammas = 10.0 ** np.arange(-7, 1.1, 0.25)
figure, axes = plt.subplots(1, 3, figsize=(12, 3.4), layout="constrained", sharey=True)
for ax, dtype in zip(axes, (np.float32, np.float16, ml_dtypes.bfloat16), strict=True):
    name = np.dtype(dtype).name
    for colour, beta in enumerate((0, 0.01, 1)):
        ax.loglog(
            gammas,
            [worst_error(g, beta, dtype) for g in gammas],
            "o",
            markersize=3,
            color=f"C{colour}",
            label=f"β = {beta}",
        )
        law = [float(oracle.recompute_error(1.0, f32(g), f32(beta), 1e-5, name)) for g in gammas]
        ax.loglog(gammas, law, color=f"C{colour}", linewidth=0.8)
    ax.axvline(1e-5, color="grey", linestyle=":")
    ax.axhline(1, color="black", linewidth=0.6)
    ax.set(title=name, xlabel="γ", ylim=(1e-8, 1e5))
axes[0].set_ylabel("error of x̂ (x̂ itself: up to 1)")
axes[0].legend(fontsize=8)
plt.show()

# %% [markdown]
# - Right of the dotted line (γ = ε = 10⁻⁵): the error grows as γ shrinks, by |β/γ|, as the law says.
# - With β = 0 (blue) nothing happens until the clamp. RMSNorm has no β: it is safe for every γ that is not below ε (or subnormal in the output's
#   dtype, so close to 0 that the format runs out of digits: look at float16, on the left).
# - Left of the dotted line: the clamp. x̂ comes back as 0 or so.
# - Above the black line, noise may be larger than the value.
# - Why do the green points stop at 1, where their line goes on? There γ x̂ is too small to change β = 1 in that dtype:
#   y is β, x̂ comes back as 0, and all of it is lost. The law is an upper bound, for any β. (0.01, the orange one, is
#   itself rounded when y is stored, and so it can come back as more than 1.)
#
# <details><summary><b>Question.</b> bfloat16, β = 0.5, γ = 0.1, |x̂| = 1. How large may the error be? Is that bad, given that x itself
# is stored in bfloat16?</summary>
#
# 2⁻⁸ (5 + 1) = 0.023. From the saved input, x̂ would be off by about 2⁻⁸ · |x| r, so by some 0.004 for a row without
# offset. Six times worse, though of a similar kind. It is the factor β/γ = 50 or 5,000 that kills.
# </details>
#
# ## On a real model
#
# Do such weights exist? normlab comes with LayerNorm traffic of a trained model, all-MiniLM-L6-v2: inputs, gradients
# and parameters of three of its norms.

# %%
data = np.load(files("normlab") / "data" / "minilm_layernorm.npz")
layers = ("embeddings", "block0_output", "block5_output")
figure, axes = plt.subplots(1, 3, figsize=(12, 3.2), layout="constrained", sharey=True)
for ax, layer in zip(axes, layers, strict=True):
    gamma, beta = np.abs(data[f"{layer}_weight"]), np.abs(data[f"{layer}_bias"])
    ax.loglog(np.maximum(gamma, 1e-10), np.maximum(beta / gamma, 1e-4), ".", markersize=4, rasterized=True)
    ax.axhline(8, color="#c8401a", linewidth=0.8)  # a limit that we shall need below
    ax.set(title=layer, xlabel="|γ| (below 1e-10: at 1e-10)", xlim=(5e-11, 5))
axes[0].set_ylabel("|β / γ|")
plt.show()
for layer in layers:
    print(f"{layer:15} three smallest |γ|:", np.sort(np.abs(data[f"{layer}_weight"]))[:3])

# %% [markdown]
# A point is a column of the norm. (The red line, at 8, is for later.) The last norm has three weights that are practically
# 0. It looks as if training had switched these features off. What does that do to `grad_input`? Run the kernels, once
# from the saved input and once from the saved output. The third path, `exact`, is the repair; it is explained below.
#
# `normlab.layer_norm_forward` and `normlab.layer_norm_backward` are the functions around the ladders: they take arrays,
# and launch the kernels. `step` names a step of the backward ladder; the first one has the least to simulate.

# %%
eps = float(data["eps"])
ROWS = 40  # of 270, so that the simulator is done quickly


def errors(layer, dtype=np.float32):
    """Relative errors of grad_input: from the input, from the output, and exact; and the columns kept."""
    names = ("input", "grad_output", "weight", "bias")
    x, dy, weight, bias = (data[f"{layer}_{name}"].astype(dtype) for name in names)
    x, dy, n2 = x[:ROWS], dy[:ROWS], x.shape[1]
    output, mean, invvar = normlab.layer_norm_forward(x, n2, weight, bias, eps=eps)
    kept = normlab.keep_columns(x, mean, invvar, n2, weight, bias, eps=eps)
    paths = (
        (x, mean, {}),
        (output, None, {"memory_efficient": True}),
        (output, None, {"memory_efficient": "exact", "kept": kept}),
    )
    truth = oracle.layer_norm_backward(dy, x, n2, weight, bias, eps).grad_input
    found = []
    for saved, mean_or_none, how in paths:
        got = normlab.layer_norm_backward(
            dy, saved, mean_or_none, invvar, n2, weight, bias, eps=eps, step="global_atomics", **how
        )[0]
        found.append(np.linalg.norm(got.astype(np.float64) - truth) / np.linalg.norm(truth))
    return found, kept, truth, got


print(f"{'':15} {'saved input':>12} {'recomputed':>12} {'exact':>12}   columns kept")
for layer in layers:
    found, kept, *_ = errors(layer)
    print(f"{layer:15} " + " ".join(f"{error:12.1e}" for error in found) + f"   {np.asarray(kept.columns).tolist()}")

# %% [markdown]
# For two of the norms, recomputing is as good as saving. For the last one it loses four or five digits. Which columns
# are to blame? Look at the error column by column:

# %%
x, dy, weight, bias = (data[f"block5_output_{name}"] for name in ("input", "grad_output", "weight", "bias"))
x, dy = x[:ROWS], dy[:ROWS]
output, _, invvar = normlab.layer_norm_forward(x, 384, weight, bias, eps=eps)
recomputed = normlab.layer_norm_backward(
    dy, output, None, invvar, 384, weight, bias, eps=eps, memory_efficient=True, step="global_atomics"
)
truth = oracle.layer_norm_backward(dy, x, 384, weight, bias, eps)
of_columns = np.linalg.norm(recomputed[0] - truth.grad_input, axis=0)
tiny = np.flatnonzero(np.abs(weight) < 1e-6)
figure, ax = plt.subplots(figsize=(9, 2.8))
ax.semilogy(of_columns, ".", markersize=4, rasterized=True)
for column in tiny:
    looks = {"xytext": (0, 32), "textcoords": "offset points", "ha": "center", "color": "#c8401a"}
    place = column, of_columns[column]
    ax.annotate(f"γ = {weight[column]:.0e}", place, arrowprops={"arrowstyle": "-", "color": "#c8401a"}, **looks)
ax.set(
    xlabel="column",
    ylabel="error",
    ylim=(1e-12, 1e-1),
    title="grad_input of block5_output, recomputed: error of each column",
)
plt.show()
for c in tiny:
    got, true = recomputed[1][c], truth.grad_weight[c]
    print(f"column {c}: β/γ = {bias[c] / weight[c]:4.1f}, grad_weight {got:.1e}, truth {true:.1e}")

# %% [markdown]
# Two columns of 384 do it, those with |γ| < ε = 10⁻¹². There y − β is some 10⁻³², and the clamp divides it by 10⁻¹²: x̂ comes
# back as 0. So their gradient lacks the term x̂ mean(g x̂), and their grad_weight is 0. The mean itself is unharmed, since
# nothing is divided in it, and so are all the other columns. The third small weight is above ε. Its x̂ loses a factor
# of |β/γ| = 58, and that is too little to be seen here.
#
# This is not a fault of our kernels. apex's own, measured on an H200 on the same data, all 270 rows, beside the
# simulator on all 270:

# %%
record = json.loads((files("normlab.bench") / "records" / "apex_recompute_h200.json").read_text())
for row in record["rows"]:
    recomputed = "NaN" if row["recomputed"] is None else f"{row['recomputed']:.1e}"
    print(f"apex on {record['gpu']}, {row['dtype']:9}: saved input {row['saved_input']:.1e}, recomputed {recomputed}")

compared = json.loads((files("normlab.bench") / "records" / "compare_float32.json").read_text())["layers"][2]
print(
    "normlab, simulator, float32:",
    {path: f"{compared[path]['grad_input']['relative']:.1e}" for path in ("saved_input", "recomputed", "exact")},
)

# %% [markdown]
# NaN in float16? apex rounds ε to the weight's dtype first, and float16 has no number between 0 and 6 · 10⁻⁸. So 10⁻¹²
# becomes 0, and the weights do, too: the clamp leaves 0, and 0/0 is NaN. (That is how its source reads; the NaN is
# measured.) normlab's clamp has ε in float32.
#
# ## The exact mode
#
# The law says which columns lose, and it needs only γ and β to say so. Those are few. So keep x̂ itself for these
# columns, and the output for all others. A column is **at risk** if
#
# - |γ| < ε (the clamp would change it), or γ is subnormal in the output's dtype, or
# - |β| > 8 |γ|.
#
# For all other columns the law gives an error of at most u (8 + |x̂|): a few units in the last place.
# `normlab.keep_columns` finds the columns and stores their x̂:

# %%
found, kept, truth, got = errors("block5_output")
print("columns at risk:", np.asarray(kept.columns).tolist(), "values kept:", kept.values.shape)
print(f"kept beside the output: {kept.values.nbytes + kept.columns.nbytes:,} bytes; the input would be {got.nbytes:,}")

# %% [markdown]
# Two of them lie below ε = 10⁻¹². The third does not, but its bias is above 8 times its weight: that is the red line in
# the picture of the weights. And the table of the three norms shows that it works: exact is as good as the saved input,
# for one percent of its memory.
#
# <details><summary><b>Question.</b> Why not keep x̂ in place of y, for all columns?</summary>
#
# Then y would be kept twice, in effect: the linear layer keeps y. The point was that y costs nothing.
# </details>
#
# <details><summary><b>Question.</b> A model starts training with all γ = 0 (some do, so that each block begins as the identity). What does
# <code>memory_efficient=True</code> do?</summary>
#
# y = β for every x. Nothing of x̂ is left in it, so grad_weight = Σ dy x̂ is computed as 0 and γ stays 0: the norm
# never wakes up. All columns are at risk, and the exact mode keeps all x̂. A small model was trained in this way;
# see below. Its lines are named by `memory_efficient`: False, True and "exact". Three of the four lie on one another.
# </details>

# %%
record = json.loads((files("normlab.bench") / "records" / "train_zero_cpu.json").read_text())
figure, ax = plt.subplots(figsize=(8, 3))
looks = {"torch.nn": ("-", 5), "False": ("-", 2.5), "True": ("-", 2), "exact": (":", 2)}
for row in record["rows"]:
    if row["turned"] == 0:
        style, width = looks[row["variant"]]
        ax.plot(row["losses"], style, linewidth=width, label=row["variant"])
ax.set(
    xlabel="step of training", ylabel="loss", title="A small decoder whose norms begin with γ = 0 (trained on a CPU)"
)
ax.legend()
plt.show()

# %% [markdown]
# ## How much memory is it?
#
# `normlab memory` counts what a LLaMA-shaped model keeps for its backward, and predicts it for sizes that do not fit
# here. From its record, for LLaMA-7B's blocks at 2 × 2048 tokens (again by `memory_efficient`; `torch.nn` is PyTorch's
# own norm):

# %%
record = json.loads((files("normlab.bench") / "records" / "memory_cpu.json").read_text())["predicted"]
parts = ("mlp", "attention", "norm outputs", "norm inputs")
figure, ax = plt.subplots(figsize=(8, 2.8))
left = np.zeros(len(record["rows"]))
for part, colour in zip(parts, ("#c3c9d1", "#dfe5ec", "#1b4f8a", "#c8401a"), strict=True):
    sizes = np.array([row[part] for row in record["rows"]]) / 1e9
    ax.barh([row["variant"] for row in record["rows"]], sizes, left=left, label=part, color=colour)
    left += sizes
ax.invert_yaxis()
ax.set(
    xlabel="GB kept for the backward",
    title="{layers} blocks of hidden {hidden}, {norm}, {dtype} (predicted)".format(**record),
)
ax.legend(ncols=4, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.25), frameon=False)
plt.show()
freed = record["rows"][0]["norm inputs"]
kept = sum(record["rows"][0][part] for part in parts)
print(f"freed: {freed / 1e9:.1f} GB of {kept / 1e9:.1f}, {freed / kept:.0%}")

# %% [markdown]
# ## Here
#
# Does recomputing cost time? Both paths of the backward, on the same problem.

# %%
n1, n2 = (16384, 4096) if use_gpu() else (4, 256)
x, dy, weight, bias = (
    np.random.default_rng(0).uniform(0.5, 1, shape).astype(f32) for shape in ((n1, n2), (n1, n2), n2, n2)
)
if use_gpu():
    import torch

    x, dy, weight, bias = (torch.from_numpy(array).cuda() for array in (x, dy, weight, bias))
output, mean, invvar = normlab.layer_norm_forward(x, n2, weight, bias)
for name, saved, mean_or_none, efficient in (("saved input", x, mean, False), ("saved output", output, None, True)):
    took = lesson.timed(
        lambda saved=saved, mean_or_none=mean_or_none, efficient=efficient: normlab.layer_norm_backward(
            dy, saved, mean_or_none, invvar, n2, weight, bias, memory_efficient=efficient
        )
    )
    print(f"{name:13} {took}")

# %% [markdown]
# ## What you have seen
#
# - A norm's output is kept by the next layer anyway; its input is not. Recomputing x̂ from the output frees the input.
# - The price is u (|β/γ| + |x̂|): nothing, unless the bias is large against the weight, or the weight near 0.
# - Trained models have such weights. Keeping x̂ of those few columns makes recomputing as good as saving.
#
# ## Exercise
#
# The course's exercise 19: recompute with clamp. `normlab course check 19` tries weights of all sizes and both signs,
# and zeros. Before that, here: which columns of these six are at risk, if ε is 10⁻⁵? Say so without `keep_columns`.
# (Then ask `normlab compare --help`, which takes data of your own: γ and β of your favourite model's norms are all you
# need.)

# %%
from normlab import course

gammas = [1, -0.5, 0.01, 1e-7, 0.05, 2]
betas = [0, 5, 0.05, 0, 0.5, -15]
columns = []  # your answer: their numbers, counted from 0

course.check(columns, "columns_at_risk")

# %% [markdown]
# <details><summary><b>Solution.</b></summary>
#
# Columns 1 and 4 have a bias above 8 times the weight, by magnitude. Column 3's weight is below ε. Column 5 comes
# close: 15 is less than 16.
#
# ```python
# columns = [i for i in range(6) if abs(gammas[i]) < 1e-5 or abs(betas[i]) > 8 * abs(gammas[i])]
# course.check(columns, "columns_at_risk")
# ```
# </details>
#
# Next: [10. Testing kernels](10_testing.ipynb).
