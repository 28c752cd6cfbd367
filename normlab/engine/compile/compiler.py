"""What the engine names of Numba, wherever the Numba at hand keeps it.

On macOS, where numba-cuda has no wheels, Numba's own, older `numba.cuda` serves. Used by the engine's files alone.
"""

try:
    from numba.cuda import cgutils, types
    from numba.cuda.core.errors import TypingError
    from numba.cuda.np.numpy_support import from_dtype
except ImportError:
    from numba.core import cgutils, types
    from numba.core.errors import TypingError
    from numba.np.numpy_support import from_dtype

__all__ = ["BFLOAT16", "TypingError", "cgutils", "from_dtype", "types"]

BFLOAT16 = getattr(types, "bfloat16", None)  # which the older one does not know
