"""Keep the parameters in shared memory in float32, with 1 / gamma beside them; `parameters` says why."""

from functools import cache
from typing import Any

from normlab.engine import cast, cuda, load_vector_into, reciprocal, store_vector_from
from normlab.kernels.backward.pipelined.kind import Kind
from normlab.kernels.backward.pipelined.layout import PipelineLayout
from normlab.stages.recompute import clamp_by_magnitude


def offsets(layout: PipelineLayout, kind: Kind) -> tuple[int, int, int]:
    """Return the offsets of gamma, 1 / gamma and beta in the block's shared memory, in accumulators."""
    start, columns = layout.parameters_at, kind.weighted * layout.thread_map.columns
    return start, start + columns, start + 2 * columns


@cuda.jit(device=True)
def fetch_nothing(operands, memory, share):
    """Do nothing in place of `fetch_parameters`: `keep_parameters` loads wide parameters while rows are in flight."""


@cache
def part_offset(layout: PipelineLayout) -> Any:
    """Return the device function `offset_of(start, v, number, offset)`: where part `number` of vector v lies.

    A lane moves at most 16 bytes at once, and without bank conflicts only if the lanes' 16 bytes are adjacent. A vector
    of eight float32 therefore has two parts. The first parts of all threads' vectors v come first (a plane), then the
    second parts. start: where the parameter begins in shared memory. offset: the thread's first column.
    """
    _, parts, plane = layout.parameter_parts
    span = layout.thread_map.span

    @cuda.jit(device=True)
    def offset_of(start, v, number, offset):
        # `offset` columns come before the thread's. With two parts a plane has only half of each vector of them.
        return start + v * span + number * plane + (offset >> (parts - 1))

    return offset_of


@cache
def loader(layout: PipelineLayout) -> Any:
    """Return the device function `load_parameters(target, parameters, start, v, offset)`: load a thread's vector v."""
    part, parts, _ = layout.parameter_parts
    offset_of = part_offset(layout)

    @cuda.jit(device=True)
    def load_parameters(target, parameters, start, v, offset):
        for number in range(parts):
            load_vector_into(target, number * part, parameters, offset_of(start, v, number, offset), part)

    return load_parameters


@cache
def storer(layout: PipelineLayout) -> Any:
    """Return the device function `store_parameters(parameters, start, v, offset, source, at)`.

    It stores source[at], … as the thread's vector v.
    """
    part, parts, _ = layout.parameter_parts
    offset_of = part_offset(layout)

    @cuda.jit(device=True)
    def store_parameters(parameters, start, v, offset, source, at):
        for number in range(parts):
            store_vector_from(parameters, offset_of(start, v, number, offset), source, at + number * part, part)

    return store_parameters


@cache
def keeper(layout: PipelineLayout, kind: Kind, dtype: Any) -> Any:
    """Return `keep_parameters`, which widens, clamps and inverts the parameters."""
    thread_map, together, offset = layout.thread_map, kind.together, kind.offset
    aligned = layout.alignments == 1
    gamma_at, inverse_at, beta_at = offsets(layout, kind)
    vectors, width, span, whole = thread_map.loop
    elements = thread_map.elements
    store_parameters = storer(layout)
    weighted, inverted = kind.weighted, kind.memory_efficient and kind.weighted
    shifted = kind.memory_efficient and kind.biased  # beta is needed only to recompute x̂

    @cuda.jit(device=True)
    def keep_parameters(operands, memory, share):
        gammas = cuda.local.array(elements, dtype)
        inverses = cuda.local.array(width, dtype)
        betas = cuda.local.array(elements, dtype)
        first, n2, parameters = share.first, operands.grad_input.shape[1], memory.parameters
        # All loads before the first store, because the compiler moves no load across a store. Without this, 32 loads
        # waited for each other and took longer than a row.
        for v in range(vectors):
            if whole or first + v * span < n2:
                for k in range(0, width, together):
                    if aligned or 0 <= first + v * span + k < n2:
                        if weighted:
                            load_vector_into(gammas, v * width + k, operands.weight, first + v * span + k, together)
                        if shifted:
                            load_vector_into(betas, v * width + k, operands.bias, first + v * span + k, together)
                    else:  # past an end of the row: where rows begin anywhere, together is 1
                        gammas[v * width + k], betas[v * width + k] = cast(1, gammas), cast(0, betas)
        # Every row group computes `rare` for its own threads; the first one stores the parameters for all.
        rare = False
        for v in range(vectors):
            if whole or first + v * span < n2:
                if weighted and offset:
                    for k in range(v * width, (v + 1) * width):
                        gammas[k] += cast(offset, gammas)
                if inverted:
                    for k in range(width):
                        gamma = gammas[v * width + k]
                        kept = clamp_by_magnitude(gamma, operands.eps)
                        rare = rare or kept != gamma
                        gammas[v * width + k] = kept
                        inverses[k] = reciprocal(kept)  # once per column, not once per element
                    if share.group == 0:
                        store_parameters(parameters, inverse_at, v, share.offset, inverses, 0)
                if weighted and share.group == 0:
                    store_parameters(parameters, gamma_at, v, share.offset, gammas, v * width)
                if shifted and share.group == 0:
                    store_parameters(parameters, beta_at, v, share.offset, betas, v * width)
        cuda.syncthreads()  # the parameters are in shared memory before other row groups read them
        return rare

    return keep_parameters


@cache
def readers(layout: PipelineLayout, kind: Kind) -> tuple[Any, Any, Any, Any]:
    """Return the device functions that load parameters of float32."""
    gamma_at, inverse_at, beta_at = offsets(layout, kind)
    load_parameters = loader(layout)

    @cuda.jit(device=True)
    def load_gammas(gammas, parameters, v, offset, weight):
        load_parameters(gammas, parameters, gamma_at, v, offset)

    @cuda.jit(device=True)
    def load_betas(betas, parameters, v, offset, bias):
        load_parameters(betas, parameters, beta_at, v, offset)

    @cuda.jit(device=True)
    def load_clamped(gammas, parameters, v, offset, weight, eps):  # clamped once, in `keep_parameters`
        load_parameters(gammas, parameters, gamma_at, v, offset)

    @cuda.jit(device=True)
    def load_inverses(gammas, inverses, parameters, v, offset, weight, eps, rare):
        # a load from shared memory in place of a division in each pass over each row
        load_parameters(gammas, parameters, gamma_at, v, offset)
        load_parameters(inverses, parameters, inverse_at, v, offset)

    return load_gammas, load_clamped, load_inverses, load_betas
