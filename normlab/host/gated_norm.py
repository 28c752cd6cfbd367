"""RMSNorm with a gate in one call, forward and backward: the norm at the end of a Mamba-2 or Gated DeltaNet block.

    norm_before_gate=True     output = x̂ γ silu(gate), as in Qwen3-Next
    norm_before_gate=False    output = γ times the RMSNorm of x silu(gate), as Mamba-2 has it by default

Arrays and dtypes are those of `normlab.host.norms`. The gate has x's dtype and shape.
"""

from typing import Any

from normlab.host import checks, replay
from normlab.host.arrays import FLOATS, backend_of, dtype_name, gradients_of
from normlab.host.strided import contiguous, matrix_of, strided_rows
from normlab.kernels.gated_norm import BACKWARD, FORWARD
from normlab.kernels.problem import BackwardProblem, ForwardProblem
from normlab.stages.gate import Gate


def gated_rms_norm_forward(
    x: Any, gate: Any, weight: Any = None, *, eps: float = 1e-6, norm_before_gate: bool = True
) -> tuple[Any, Any]:
    """Return an RMSNorm over the last dimension with a gate, and its invvar.

    Args:
        x, gate: (*leading, n), one dtype: float16, bfloat16, float32 or float64; any strides. Neither is copied if its
            rows lie equally far apart, by a multiple of n, or if they are heads as in `normlab.head_rms_norm_forward`.
        weight: (n,), or None.
        eps: added to the mean square.
        norm_before_gate: True: output = x̂ weight silu(gate). False: the RMSNorm of x silu(gate), which is not rounded
            before it is normalised.

    Returns:
        (output, invvar): output has the weight's dtype (x's without a weight). invvar has the leading dimensions' shape
        and is float32 (float64 for float64).

    Raises:
        ValueError: shapes that do not fit, arrays on different devices.
        TypeError: an argument that is no array, a dtype or a mix of dtypes without kernels.

    >>> import numpy as np
    >>> x, gate = np.float32([[3.0, 4.0]]), np.float32([[0.0, 50.0]])
    >>> output, invvar = gated_rms_norm_forward(x, gate, eps=0.0)
    >>> output.round(2)
    array([[ 0.  , 56.57]], dtype=float32)
    """
    shape = tuple(getattr(x, "shape", ()))
    (rows, row_map), (gates, gate_map) = strided_rows(x, any_rows=True), strided_rows(gate, any_rows=True)
    given = rows, gates, weight
    key, pointers = replay.signature(given, shape, eps, FORWARD.name, "forward", norm_before_gate, row_map, gate_map)
    cached = replay.find(key)
    if cached:
        return cached(pointers)

    backend = replay.caching(backend_of({"x": x, "gate": gate}, {"weight": weight}), key, pointers)
    leading, n1, n2 = checks.rows_of("x", x)
    output_dtype = FLOATS[checks.parameter_dtype("x", x, weight, None)]
    checks.check_parameters(weight, None, (n2,))
    checks.check_shape("gate", gate, shape, "as x")
    checks.check_dtype("gate", gate, dtype_name(x), "as x")
    check_options(norm_before_gate, False)
    statistics = FLOATS[checks.statistics_dtype(dtype_name(x))]
    output, invvar = backend.empty((n1, n2), output_dtype), backend.empty((n1,), statistics)
    if n1:
        problem = ForwardProblem(
            x=matrix_of(backend, rows),
            gate=matrix_of(backend, gates),
            row_map=row_map,
            gate_map=gate_map,
            weight=backend.operand(weight, (n2,)),
            bias=None,
            eps=checks.rounded_eps(eps, statistics.name),
            output=output,
            mean=None,
            invvar=invvar,
            gating=Gate(bool(norm_before_gate)),
        )
        if (row_map or gate_map) and not FORWARD.does(problem):  # no kernel reads these rows in place
            copies = contiguous(x), contiguous(gate)
            return gated_rms_norm_forward(*copies, weight, eps=eps, norm_before_gate=norm_before_gate)
        FORWARD.run(backend.launch, backend, problem)
    return replay.keep(backend, (output, shape), (invvar, leading))


def gated_rms_norm_backward(
    grad_output: Any,
    saved: Any,
    gate: Any,
    invvar: Any,
    weight: Any = None,
    *,
    eps: float = 1e-6,
    norm_before_gate: bool = True,
    memory_efficient: bool = False,
) -> tuple[Any, Any, Any]:
    """Return the gradients of `gated_rms_norm_forward`: (grad_x, grad_gate, grad_weight).

    Args:
        grad_output: (*leading, n), the output's dtype.
        saved: x, or with memory_efficient the output.
        gate, weight, eps, norm_before_gate: the forward's arguments. The gate's dtype is that of grad_x and grad_gate.
        invvar: the forward's result.
        memory_efficient: recompute x̂ = output / (weight silu(gate)). A divisor nearer to 0 than eps becomes eps or
            -eps, and gradients are wrong there. Only with norm_before_gate: a gate of 0 before the norm leaves nothing
            of x in the output, and the gate's gradient needs x.

    Raises:
        ValueError, TypeError: as `gated_rms_norm_forward`.
    """
    shape = tuple(getattr(gate, "shape", ()))
    (rows, row_map), (gates, gate_map) = strided_rows(saved, any_rows=True), strided_rows(gate, any_rows=True)
    options = "backward", norm_before_gate, memory_efficient, row_map, gate_map
    key, pointers = replay.signature((grad_output, rows, gates, invvar, weight), shape, eps, BACKWARD.name, *options)
    cached = replay.find(key)
    if cached:
        return cached(pointers)

    required = {"gate": gate, "saved": saved, "grad_output": grad_output, "invvar": invvar}
    backend = replay.caching(backend_of(required, {"weight": weight}), key, pointers)
    _, n1, n2 = checks.rows_of("gate", gate)
    check_options(norm_before_gate, memory_efficient)
    input_dtype, output_dtype, statistics = _checked(grad_output, saved, gate, invvar, weight, memory_efficient)
    (grad_weight,) = gradients_of((weight,), (n2,), output_dtype, n1, backend)
    grad_input, grad_gate = (backend.empty((n1, n2), input_dtype) for _ in range(2))
    if n1:
        problem = BackwardProblem(
            grad_output=backend.operand(grad_output, (n1, n2)),
            saved=matrix_of(backend, rows),
            gate=matrix_of(backend, gates),
            row_map=row_map,
            gate_map=gate_map,
            mean=None,
            invvar=backend.operand(invvar, (n1,)),
            weight=backend.operand(weight, (n2,)),
            bias=None,
            eps=checks.rounded_eps(eps, statistics.name),
            rms=True,
            memory_efficient=False,  # the gate's stages recompute x̂, not the norm's
            grad_input=grad_input,
            grad_gate=grad_gate,
            grad_weight=grad_weight,
            grad_bias=None,
            gating=Gate(bool(norm_before_gate), bool(memory_efficient)),
        )
        if (row_map or gate_map) and not BACKWARD.does(problem):  # no kernel reads these rows in place
            copies = grad_output, contiguous(saved), contiguous(gate), invvar, weight
            modes = {"norm_before_gate": norm_before_gate, "memory_efficient": memory_efficient}
            return gated_rms_norm_backward(*copies, eps=eps, **modes)
        BACKWARD.run(backend.launch, backend, problem)
    return replay.keep(backend, (grad_input, shape), (grad_gate, shape), (grad_weight, (n2,)))


def _checked(
    grad_output: Any, saved: Any, gate: Any, invvar: Any, weight: Any, memory_efficient: bool
) -> tuple[Any, Any, Any]:
    """Return the dtypes of grad_x, of the output and of the statistics, or raise if an argument does not fit."""
    kind, shape = dtype_name(gate), tuple(gate.shape)
    output = checks.parameter_dtype("gate", gate, weight, None)
    checks.check_parameters(weight, None, shape[-1:])
    checks.check_dtype("grad_output", grad_output, output, "the output's dtype")
    because = "the output's dtype" if memory_efficient else "x's dtype, which is the gate's"
    checks.check_dtype("saved", saved, output if memory_efficient else kind, because)
    checks.check_shape("grad_output", grad_output, shape, "as gate")
    checks.check_shape("saved", saved, shape, "as gate")
    statistics = checks.statistics_dtype(kind)
    checks.check_statistics({"invvar": invvar}, shape[:-1], statistics, "gate")
    return FLOATS[kind], FLOATS[output], FLOATS[statistics]


def check_options(norm_before_gate: Any, memory_efficient: Any) -> None:
    """Raise ValueError for options that are not bools, or that do not go together."""
    for name, given in (("norm_before_gate", norm_before_gate), ("memory_efficient", memory_efficient)):
        if type(given) is not bool:
            raise ValueError(f"{name} must be True or False, got {given!r}")
    if memory_efficient and not norm_before_gate:
        raise ValueError(
            "memory_efficient=True needs norm_before_gate=True, got norm_before_gate=False: a gate of 0 before the "
            "norm leaves nothing of x in the output, and the gate's gradient needs x"
        )
