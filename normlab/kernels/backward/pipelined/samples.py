"""Give each cluster of the pipelined backward one sample: its rows, its parameters and its parameters' gradients.

The parameters of a modulated norm, scale and shift, are one row per sample. A cluster therefore takes rows of a single
sample, and sees that sample as if it were the whole problem: its operands are views of the sample's memory.

    cluster      0  1  2  3  4  5        three samples, two clusters each
    sample       0  1  2  0  1  2
    rows         the sample's first, third, …        the sample's second, fourth, …
"""

from functools import cache
from typing import Any

from normlab.engine import cuda
from normlab.kernels.backward.pipelined.kind import Kind
from normlab.kernels.backward.pipelined.layout import PipelineLayout
from normlab.kernels.backward.pipelined.operands import Gradients, Operands


@cache
def samplers(layout: PipelineLayout, kind: Kind) -> tuple[Any, Any, Any]:
    """Return the device functions with which a block finds its sample; without samples they change nothing.

    samples_of(operands)                          how many samples there are
    operands_of(operands) -> Operands             those of this block's sample
    gradients_of(gradients, samples) -> Gradients
    """
    blocks = layout.blocks

    @cuda.jit(device=True)
    def one(operands):
        # A constant, so that the compiler drops what depends on the number of samples.
        return 1

    @cuda.jit(device=True)
    def same(operands):
        return operands

    @cuda.jit(device=True)
    def same_gradients(gradients, samples):
        return gradients

    @cuda.jit(device=True)
    def samples_of(operands):
        return operands.weight.shape[0]

    @cuda.jit(device=True)
    def operands_of(operands):
        samples = operands.weight.shape[0]
        sample = cuda.blockIdx.x // blocks % samples
        # Neighbouring clusters have different samples. Every `samples`-th cluster shares one, and its rows.
        rows = operands.grad_input.shape[0] // samples
        first = sample * rows
        end = first + rows
        # Slices are views of the same memory. The passes count rows from 0 and never learn of other samples.
        return Operands(
            operands.grad_output[first:end],
            operands.saved[first:end],
            operands.mean[first:end],
            operands.invvar[first:end],
            operands.weight[sample],
            operands.bias[sample],
            operands.eps,
            operands.mean_factor,
            operands.grad_residual,  # None, as gate and grad_gate: a modulated norm has neither residual nor gate
            operands.gate,
            operands.grad_input[first:end],
            operands.grad_gate,
        )

    @cuda.jit(device=True)
    def gradients_of(gradients, samples):
        sample = cuda.blockIdx.x // blocks % samples
        # The partial sums have one row per cluster, of all samples: they are not divided.
        return Gradients(
            gradients.grad_weight[sample], gradients.grad_bias[sample], gradients.part_weight, gradients.part_bias
        )

    if kind.sampled:
        return samples_of, operands_of, gradients_of
    return one, same, same_gradients
