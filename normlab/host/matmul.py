"""The matrix product's host function: check the arguments, choose a step of the SGEMM ladder, launch it.

It takes the same kinds of arrays as `normlab.host.norms` and returns an array of the caller's kind. float32 only.
"""

from typing import Any

import numpy as np

from normlab.host import checks
from normlab.host.arrays import FLOATS, backend_of
from normlab.kernels import Product

FLOAT32 = FLOATS["float32"]


def sgemm(a: Any, b: Any, c: Any = None, alpha: float = 1.0, beta: float = 0.0, *, step: str | None = None) -> Any:
    """Return alpha A B + beta C as a new array, in float32 throughout: no tensor cores, no TF32.

    As in BLAS, A and B are not read if alpha is 0, and C is not read if beta is 0: their NaNs and infinities do not
    reach the output then. A product over no columns (K = 0) is 0. Every step adds along K in the same order, so all
    steps give the same bits on a GPU of any size.

    Args:
        a: (M, K), float32; any strides. A view that is not contiguous, such as a transposed one, is copied first.
        b: (K, N), float32; any strides.
        c: (M, N), float32; any strides; may be None if beta is 0.
        alpha, beta: rounded to float32.
        step: the name of a step of the SGEMM ladder; None: the best one.

    Returns:
        (M, N), float32, C-contiguous, of a's kind and on its device. It belongs to no autograd graph.

    Raises:
        ValueError: shapes that do not fit, c missing, arrays on different devices, an unknown step.
        TypeError: an argument that is no array, another dtype, alpha or beta that is no real number.

    >>> import numpy as np
    >>> a, b = np.float32([[1, 2], [3, 4]]), np.float32([[1, 0], [1, 1]])
    >>> sgemm(a, b, np.eye(2, dtype=np.float32), alpha=2, beta=10, step="naive")
    array([[16.,  4.],
           [14., 18.]], dtype=float32)
    """
    backend = backend_of({"a": a, "b": b}, {"c": c})
    checks.check_float32({"a": a, "b": b, "c": c})
    m, n, k = _sizes(a, b)
    checks.check_shape("c", c, (m, n), "rows of a and columns of b")
    with np.errstate(over="ignore"):
        factor = np.float32(checks.number(alpha, "alpha"))
        addend_factor = np.float32(checks.number(beta, "beta"))
    if addend_factor == 0:
        c = None
    elif c is None:
        raise ValueError(f"c is needed where beta is not 0, got c=None and beta={beta}")
    chosen = checks.product_step(step)

    output = backend.empty((m, n), FLOAT32)
    if m and n:
        if factor == 0 or k == 0:  # a product of empty arrays is 0; factor 1, because an infinite one would make NaN
            factor, k = np.float32(1), 0
        what, seconds = f"step {chosen.name!r} on {m} x {n} x {k}", chosen.simulated_seconds(m, n, k)
        checks.warn_if_slow(backend, seconds, what, "smaller matrices are faster", stacklevel=3)
        left = backend.operand(a, (m, k)) if k else backend.empty((m, 0), FLOAT32)
        right = backend.operand(b, (k, n)) if k else backend.empty((0, n), FLOAT32)
        chosen.run(
            backend.launch, None, Product(factor, left, right, addend_factor, backend.operand(c, (m, n)), output)
        )
    return backend.give_back(output, (m, n))


def _sizes(a: Any, b: Any) -> tuple[int, int, int]:
    """Return M, N and K; raise ValueError for shapes that have no product."""
    checks.check_matrix("a", a)
    checks.check_matrix("b", b)
    (m, k), (rows, n) = a.shape, b.shape
    if k != rows:
        raise ValueError(f"a and b shapes cannot be multiplied ({m}x{k} and {rows}x{n})")
    return m, n, k
