# %% [markdown]
# # 15. In PyTorch: autograd, compile, and the memory of a LLaMA-shaped stack
#
# **Aim.** Put the kernels behind a `torch.nn.Module`: gradients, what is kept between forward and backward, graphs.
# Then count what saving the output is worth in a model.
#
# **Before.** Tutorials [7](07_backward.ipynb) and [9](09_recompute.ipynb); to have trained a model in PyTorch.
#
# **Time.** 35 minutes.

# %%
import json
from importlib.resources import files

import matplotlib.pyplot as plt
import numpy as np
import torch

import normlab
from normlab import nn
from normlab.learn import lesson
from normlab.studies.memory import measure, prediction
from normlab.studies.memory.model import Shape
from normlab.studies.memory.saved import counting

lesson.begin()
torch.manual_seed(0)
print("PyTorch", torch.__version__)

# %% [markdown]
# ## A function with a gradient
#
# PyTorch records what is done to tensors, and goes back over the record in `backward()`. For its own operations it
# knows the gradients. For ours, we say them: a `torch.autograd.Function` has a `forward` and a `backward`. What the
# backward will need, the forward hands to `ctx.save_for_backward`.
#
# normlab's host functions take torch tensors and give torch tensors. So this is short:


# %%
class SavesInput(torch.autograd.Function):
    """LayerNorm that keeps its input."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        output, mean, invvar = normlab.layer_norm_forward(x, x.shape[-1], weight, bias)
        ctx.save_for_backward(x, mean, invvar, weight, bias)
        return output

    @staticmethod
    def backward(ctx, grad_output):
        x, mean, invvar, weight, bias = ctx.saved_tensors
        return normlab.layer_norm_backward(grad_output, x, mean, invvar, x.shape[-1], weight, bias)


class SavesOutput(torch.autograd.Function):
    """LayerNorm that keeps its output."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        output, _, invvar = normlab.layer_norm_forward(x, x.shape[-1], weight, bias)
        ctx.save_for_backward(output, invvar, weight, bias)
        return output

    @staticmethod
    def backward(ctx, grad_output):
        output, invvar, weight, bias = ctx.saved_tensors
        return normlab.layer_norm_backward(
            grad_output, output, None, invvar, output.shape[-1], weight, bias, memory_efficient=True
        )


x = torch.randn(6, 10, requires_grad=True)
weight, bias = torch.rand(10, requires_grad=True), torch.randn(10, requires_grad=True)
for function in (SavesInput, SavesOutput):
    x.grad = None
    (function.apply(x, weight, bias) ** 2).sum().backward()
    mine = x.grad.clone()
    x.grad = None
    (torch.nn.functional.layer_norm(x, (10,), weight, bias) ** 2).sum().backward()
    print(f"{function.__name__:12} largest difference from torch.nn's gradient: {(mine - x.grad).abs().max():.1e}")

# %% [markdown]
# The second is less exact. Why? Tutorial 9: the weights are random, and one of them is small beside its bias.

# %%
print("largest |β / γ|:", (bias / weight).abs().max().item())

# %% [markdown]
# Here the tensors are on the CPU, so the kernels ran in the simulator (or on a GPU and back, if you have one). With
# CUDA tensors they stay where they are, and the work is queued on PyTorch's stream.
#
# **gradcheck** is PyTorch's own test of gradients: it moves every input a little, in float64, and compares with the
# backward. It is finite differences, as in tutorial 7.

# %%
doubles = [tensor.detach().double().requires_grad_() for tensor in (x[:2, :4], weight[:4], bias[:4])]
print("gradcheck:", torch.autograd.gradcheck(SavesInput.apply, doubles))

# %% [markdown]
# ## Who keeps what: count it
#
# PyTorch has hooks that are called for every tensor that is saved for a backward. `normlab.studies.memory.saved.counting` uses
# them and counts bytes, each piece of memory once. Take the beginning of a block: norm, then a linear layer, then an
# addition to the residual stream.

# %%
tokens, hidden = 64, 256
linear = torch.nn.Linear(hidden, hidden)
stream = torch.randn(tokens, hidden, requires_grad=True)
gamma, beta = torch.ones(hidden, requires_grad=True), torch.zeros(hidden, requires_grad=True)


def kept(norm):
    """Bytes that autograd keeps for the backward of x + linear(norm(x)), parameters not counted; in arrays of x's size."""
    x = stream * 1  # so that x is the result of something, as in a model
    with counting([*linear.parameters(), gamma, beta]) as saved:
        (x + linear(norm(x))).sum()
    return sum(saved.values()) / (tokens * hidden * 4)


for name, norm in (
    ("SavesInput", lambda x: SavesInput.apply(x, gamma, beta)),
    ("SavesOutput", lambda x: SavesOutput.apply(x, gamma, beta)),
    ("torch.nn's", lambda x: torch.nn.functional.layer_norm(x, (hidden,), gamma, beta)),
):
    print(f"{name:12} keeps {kept(norm):.2f} arrays of the size of x")

# %% [markdown]
# With `SavesInput` two arrays are kept: x (by the norm) and y (by the linear layer). With `SavesOutput` just y, for
# both. The hundredths are the statistics, two numbers or one for each row of 256.
#
# <details><summary><b>Question.</b> Someone writes <code>ctx.x = x</code> instead of <code>ctx.save_for_backward(x)</code>. It works. What is wrong with it?</summary>
#
# PyTorch does not know of it: no check whether x was changed in place in the meantime, no hooks (so nothing that
# counts, compresses or offloads saved tensors), and if it is an output, a reference cycle that keeps memory alive.
# </details>
#
# <details><summary><b>Question.</b> After the norm comes an activation <em>in place</em>, <code>torch.relu_(y)</code>. What happens to <code>SavesOutput</code>?</summary>
#
# Its saved y has been overwritten. PyTorch notices (each tensor has a version number) and <code>backward()</code>
# raises an error. <code>SavesInput</code> has the same problem if x is changed in place after the norm has seen it.
# </details>
#
# ## The modules
#
# `normlab.nn` has this done properly: apex's names, missing parameters, half precision, `memory_efficient` False, True
# or "exact" (tutorial 9). And a function that exchanges the norms of a model, keeping its parameters:

# %%
model = torch.nn.Sequential(
    torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Linear(32, 16), torch.nn.RMSNorm(16)
)
before = model(torch.ones(2, 16))
print(nn.replace_norms(model, memory_efficient="exact"))
print("the same output:", torch.allclose(before, model(torch.ones(2, 16)), atol=1e-6))

# %% [markdown]
# On CPU tensors these modules use PyTorch's own operations, which compute the same, because a simulator is no place to
# train. `with nn.engine("simulator"):` runs the kernels all the same:

# %%
norm, x = nn.FusedLayerNorm(32, memory_efficient="exact"), torch.randn(4, 32)
with nn.engine("simulator"):
    by_kernels = norm(x)
print("kernels and PyTorch's operations differ by", f"{(by_kernels - norm(x)).abs().max().item():.1e}")

# %% [markdown]
# ## Graphs
#
# `torch.compile` runs a model's Python once, notes the operations as a **graph**, and hands the graph to a compiler. It
# cannot look into a kernel launch by Numba. If it meets something like that, it either stops (`fullgraph=True`) or cuts
# the graph in two.
#
# The remedy is a **custom operator**: a name, a type for its arguments, and a *fake* version that says only the shapes
# and dtypes of the results. With that the compiler can go on without knowing what happens inside. normlab registers
# `normlab::layer_norm` and others. A "compiler" that just prints the graph:


# %%
def print_graph(graph, inputs):
    for node in graph.graph.nodes:
        if node.op == "call_function" and "getitem" not in str(node.target):
            print("  ", str(node.target).split(" at 0x")[0][:60])
    return graph.forward


model = torch.nn.Sequential(torch.nn.Linear(8, 8), nn.FusedLayerNorm(8, memory_efficient=True), torch.nn.GELU())
compiled = torch.compile(model, backend=print_graph, fullgraph=True)
x = torch.randn(2, 8)
print("same output:", torch.equal(compiled(x), model(x)))

# %% [markdown]
# The norm is one node, and the graph is in one piece. (The node `_are_functorch_transforms_active` is a question that
# the module asks PyTorch.) The same operators make `torch.export` work, and a CUDA graph (a recording of
# launches, which the GPU plays again as one) can capture them.
#
# ## A LLaMA-shaped stack
#
# `normlab.studies.memory.model` is a decoder with LLaMA's blocks: RMSNorm, attention, RMSNorm, and an MLP (SwiGLU, one with three
# matrices). Train it for some steps with each of five kinds of norm: PyTorch's own, normlab's with `memory_efficient`
# False, True and "exact", and "exact" with the additions in the norms' kernels ([tutorial 17](17_block.ipynb)). Count what
# autograd keeps; and *predict* it from the shapes alone.

# %%
shape = Shape(layers=2, hidden=128, batch=2, sequence=64, norm="rms", dtype="float32")
record = measure.run(shape, 3, "cpu")
print(f"{'norms':10} {'kept, MB':>9} {'predicted':>10}   losses of three steps")
for row in record["rows"]:
    losses = ", ".join(f"{loss:.6f}" for loss in row["losses"])
    print(f"{row['variant']:10} {row['saved_bytes'] / 1e6:9.3f} {row['predicted_bytes'] / 1e6:10.3f}   {losses}")

# %% [markdown]
# The prediction is exact. So one can ask it about a model that does not fit here: the blocks of LLaMA-7B on 2 × 2048
# tokens, in bfloat16, on a GPU.
#
# Where do the bytes come from? For each block and token, with hidden size h, so many elements: the norms' inputs 2h,
# their outputs 2h, attention 4h, the MLP 4 × its inner size (2.7 h for LLaMA, so 10.8 h). That is 18.8 h, of which the
# norms' inputs are 2 h.

# %%
llama = prediction.LLAMA
print(llama)
variants = ("torch.nn", "False", "True", "exact")
parts = [prediction.saved(llama, variant, "cuda") for variant in variants]
figure, ax = plt.subplots(figsize=(9, 3), layout="constrained")
left = np.zeros(len(variants))
for role, colour in zip(parts[0], ("#c8401a", "#1b4f8a", "black", "#dfe5ec", "#c3c9d1", "grey"), strict=True):
    sizes = np.array([one[role] for one in parts]) / 1e9
    ax.barh(variants, sizes, left=left, color=colour, label=role)
    left += sizes
ax.invert_yaxis()
ax.set(xlabel="GB kept for the backward (predicted)", title="LLaMA-7B's blocks, 4,096 tokens")
ax.legend(ncols=6, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.22), frameon=False)
plt.show()
saved = prediction.total(llama, "False", "cuda") - prediction.total(llama, "True", "cuda")
print(f"saving the output frees {saved / 1e9:.2f} GB, {saved / prediction.total(llama, 'False', 'cuda'):.0%}")

# %% [markdown]
# Is it true? A model of this shape was trained on an H200 for five steps, and counted in the same way. The **peak** is the
# most that PyTorch had allocated at any time: parameters, gradients, and all that is kept.

# %%
record = json.loads((files("normlab.bench") / "records" / "memory_h200.json").read_text())
print(
    f"{record['gpu']}: {record['layers']} blocks, hidden {record['hidden']}, {record['batch']} x {record['sequence']} tokens"
)
for row in record["rows"]:
    print(
        f"{row['variant']:10} kept {row['saved_bytes'] / 1e9:.3f} GB, predicted {row['predicted_bytes'] / 1e9:.3f}; "
        f"peak {row['peak_bytes'] / 1e9:.2f} GB; a step takes {row['step']['median_us'] / 1e3:.0f} ms"
    )
off = {row["saved_bytes"] - row["predicted_bytes"] for row in record["rows"]}
print("counted minus predicted:", off, "bytes")

# %% [markdown]
# (The formula misses <!--=uncounted bytes-->512<!--=--> bytes of 20 GB.) The peak falls by what was
# predicted, and the time of a step hardly changes: the norms are a small part of it.
#
# With gradient checkpointing most activations are not kept but computed again. Then less is kept, and the norms may have
# another share of it. Count it for *your* model, with `counting`.
#
# <details><summary><b>Question.</b> A post-norm block computes <code>norm(x + f(x))</code>, and its output is the next block's residual stream <em>and</em> the input of a linear layer. Is saving the output still free?</summary>
#
# Yes: the output is kept by the linear layer. And the input, x + f(x), is a sum that nothing else keeps: so here, too,
# one array is freed.
# </details>
#
# <details><summary><b>Question.</b> Between norm and linear layer there is a dropout. What is kept now?</summary>
#
# The linear layer keeps what dropout gives it, not the norm's output. Then the output is kept for the norm alone, just
# as the input would be: nothing is gained.
# </details>
#
# ## On a GPU

# %%
if measure.device() == "cuda":
    from normlab.measure.timing import EventTimer

    timer, x = EventTimer(), torch.randn(32768, 4096, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    dy = torch.randn_like(x)
    for norm in (torch.nn.LayerNorm(4096), nn.FusedLayerNorm(4096), nn.FusedLayerNorm(4096, memory_efficient="exact")):
        norm = norm.to("cuda", torch.bfloat16)
        y = norm(x)
        forward = timer(lambda norm=norm: norm(x)).median
        backward = timer(lambda y=y: torch.autograd.grad(y, x, dy, retain_graph=True)).median
        print(f"{norm!s:60} forward {1e6 * forward:.0f} µs, backward {1e6 * backward:.0f} µs")
else:
    print("no GPU that PyTorch can use: nothing is timed here. From the record of an H200, bfloat16, n2 = 4096:")
    for direction in ("forward", "backward"):
        told = {
            name: lesson.recorded("layer", direction, 4096, "bfloat16", name)
            for name in ("normlab", "torch", "compile")
        }
        print(
            f"   {direction:9}",
            ", ".join(f"{name} {fraction:.2f}" for name, fraction in told.items()),
            "of a copy's speed",
        )

# %% [markdown]
# ## What you have seen
#
# - An autograd function says its backward, and what it keeps. Keeping the output costs nothing where the next layer keeps it.
# - What autograd keeps can be counted, and predicted to the byte.
# - A custom operator with a fake version makes a kernel fit into graphs.
#
# ## Exercise
#
# You have come through all of normlab's kernels. What is left of the course: `normlab course progress` shows it. From here, exercise
# 19 (recompute with clamp; `normlab course check 19`) is worth a second look. Before that: write `SavesExact`, with
# `normlab.keep_columns` in its forward. For how many columns does it keep x̂ in a fresh LayerNorm, with γ = 1 and β =
# 0?

# %%
from normlab import course

kept_columns = None  # your answer

course.check(kept_columns, "kept_columns")

# %% [markdown]
# <details><summary><b>Solution.</b></summary>
#
# None: no weight is below ε, and no bias is above 8 times its weight. So nothing is kept beside the output.
#
# ```python
# from normlab.host.exact import Kept
#
#
# class SavesExact(torch.autograd.Function):
#     @staticmethod
#     def forward(ctx, x, weight, bias):
#         n2 = x.shape[-1]
#         output, mean, invvar = normlab.layer_norm_forward(x, n2, weight, bias)
#         kept = normlab.keep_columns(x, mean, invvar, n2, weight, bias)
#         ctx.save_for_backward(output, invvar, weight, bias, *kept)
#         return output
#
#     @staticmethod
#     def backward(ctx, grad_output):
#         output, invvar, weight, bias, columns, values = ctx.saved_tensors
#         return normlab.layer_norm_backward(
#             grad_output, output, None, invvar, output.shape[-1], weight, bias,
#             memory_efficient="exact", kept=Kept(columns, values),
#         )
#
#
# x = torch.randn(6, 10, requires_grad=True)
# weight, bias = torch.ones(10, requires_grad=True), torch.zeros(10, requires_grad=True)
# output, mean, invvar = normlab.layer_norm_forward(x.detach(), 10, weight.detach(), bias.detach())
# kept = normlab.keep_columns(x.detach(), mean, invvar, 10, weight.detach(), bias.detach())
# SavesExact.apply(x, weight, bias).sum().backward()
# course.check(len(kept.columns), "kept_columns")
# ```
# </details>
#
# Next: [16. A row that lives on four machines](16_ranks.ipynb). Or read the kernels, upwards from
# `normlab/stages/moments.py`.
