"""Import Numba's compiler types from wherever the installed version keeps them. Only the engine's files use this.

numba-cuda has no wheels for macOS, so the engine falls back there on the older `numba.cuda` that Numba itself brings.
"""

try:
    from numba.cuda import cgutils, types
    from numba.cuda.core.errors import TypingError
    from numba.cuda.np.numpy_support import from_dtype
    from numba.cuda.typing.typeof import typeof
except ImportError:
    from numba.core import cgutils, types
    from numba.core.errors import TypingError
    from numba.core.typing.typeof import typeof
    from numba.np.numpy_support import from_dtype

__all__ = ["BFLOAT16", "TypingError", "cgutils", "from_dtype", "typeof", "types"]

BFLOAT16 = getattr(types, "bfloat16", None)  # the older numba.cuda has no bfloat16
