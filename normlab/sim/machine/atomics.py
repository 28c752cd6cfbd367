"""Simulate atomic operations: `cuda.atomic`. All go through `Atomics._update`, which tells the observer."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from normlab.sim.language.integers import INTEGER_CASTS
from normlab.sim.protocols import Cuda


@cache
def _cast_to(dtype: np.dtype) -> Callable[[Any], Any]:
    """Return what wraps or rounds a value into an element of `dtype`; found once, as a dtype's name is slow."""
    return INTEGER_CASTS.get(dtype.name, dtype.type)


def _in_type_of(array: np.ndarray, value: Any) -> Any:
    """Return `value` in the element type of `array`, wrapped or rounded."""
    # First of all, as on a GPU: a float32 sum rounds in float32, and cas with -1 finds 0xFFFFFFFF in a uint32.
    return _cast_to(array.dtype)(value)


class Atomics:
    """`cuda.atomic`: every method returns the value that it found. An index is an int or a tuple of ints."""

    def __init__(self, cuda: Cuda):
        """Belong to the launch of `cuda`."""
        self._cuda = cuda

    def _update(self, array: np.ndarray, index: Any, new_value: Callable[[Any], Any], heard_as: str = "atomic") -> Any:
        """Replace `array[index]` by `new_value` of it and return the old one. `heard_as`: the observer's method."""
        grid, thread, seen = self._cuda.grid_run, self._cuda.current, (array, index)
        # An observer gives the plain array to work on, and for a bad index poison; `seen` keeps what `updated` needs.
        if self._cuda.observer is not None:
            array, index = getattr(self._cuda.observer, heard_as)(array, index)
        old = array[index]
        # No greenlet switch can happen between the load and the store, which makes the update atomic.
        array[index] = new = new_value(old)
        if self._cuda.observer is not None and new != old:
            self._cuda.observer.updated(*seen)
        # The thread stops in `spin` or `update` if at all, after the store. The key has the array's address, because a
        # loop may poll two arrays at one index.
        if new == old or new != new:  # nothing has changed (a NaN differs from itself): this may be a spin loop
            grid.spin(thread, (array.ctypes.data, index), old)
        else:
            grid.update(thread)
        return old

    def add(self, array: np.ndarray, index: Any, value: Any) -> Any:
        """Do array[index] += value."""
        value = _in_type_of(array, value)
        return self._update(array, index, lambda old: old + value)

    def sub(self, array: np.ndarray, index: Any, value: Any) -> Any:
        """Do array[index] -= value."""
        value = _in_type_of(array, value)
        return self._update(array, index, lambda old: old - value)

    def and_(self, array: np.ndarray, index: Any, value: Any) -> Any:
        """Do array[index] &= value."""
        value = _in_type_of(array, value)
        return self._update(array, index, lambda old: old & value)

    def or_(self, array: np.ndarray, index: Any, value: Any) -> Any:
        """Do array[index] |= value."""
        value = _in_type_of(array, value)
        return self._update(array, index, lambda old: old | value)

    def xor(self, array: np.ndarray, index: Any, value: Any) -> Any:
        """Do array[index] ^= value."""
        value = _in_type_of(array, value)
        return self._update(array, index, lambda old: old ^ value)

    def inc(self, array: np.ndarray, index: Any, limit: Any) -> Any:
        """Count up to `limit`, then start again at 0."""
        limit = _in_type_of(array, limit)
        # CUDA's atomicInc: ((old >= limit) ? 0 : old + 1).
        return self._update(array, index, lambda old: array.dtype.type(0) if old >= limit else old + 1)

    def dec(self, array: np.ndarray, index: Any, limit: Any) -> Any:
        """Count down to 0, then start again at `limit`."""
        limit = _in_type_of(array, limit)
        # CUDA's atomicDec: a value above the limit comes back to the limit, too.
        return self._update(array, index, lambda old: limit if old == 0 or old > limit else old - 1)

    def exch(self, array: np.ndarray, index: Any, value: Any) -> Any:
        """Do array[index] = value."""
        value = _in_type_of(array, value)
        # The sanitizer must know that the old value is not used: an exchange may be the first write of the element.
        return self._update(array, index, lambda old: value, heard_as="exchange")

    def max(self, array: np.ndarray, index: Any, value: Any) -> Any:
        """Keep the larger; a NaN in the array stays, a NaN given is ignored."""
        value = _in_type_of(array, value)
        # Comparisons with a NaN are False, so `old` stays if either is one. Numba's compare-and-swap loop ends so, too.
        return self._update(array, index, lambda old: value if value > old else old)

    def min(self, array: np.ndarray, index: Any, value: Any) -> Any:
        """Keep the smaller; a NaN in the array stays, a NaN given is ignored."""
        value = _in_type_of(array, value)
        return self._update(array, index, lambda old: value if value < old else old)

    def nanmax(self, array: np.ndarray, index: Any, value: Any) -> Any:
        """Keep the larger; a NaN on either side counts as missing."""
        value = _in_type_of(array, value)
        # `old != old` finds a NaN in the array, which any value replaces. A NaN that is given is larger than nothing.
        return self._update(array, index, lambda old: value if value > old or old != old else old)

    def nanmin(self, array: np.ndarray, index: Any, value: Any) -> Any:
        """Keep the smaller; a NaN on either side counts as missing."""
        value = _in_type_of(array, value)
        return self._update(array, index, lambda old: value if value < old or old != old else old)

    def cas(self, array: np.ndarray, index: Any, expected: Any, value: Any) -> Any:
        """Store `value` if the element equals `expected`."""
        expected, value = _in_type_of(array, expected), _in_type_of(array, value)
        return self._update(array, index, lambda old: value if old == expected else old)

    def compare_and_swap(self, array: np.ndarray, expected: Any, value: Any) -> Any:
        """Do `cas` on the first element."""
        return self.cas(array, (0,) * array.ndim, expected, value)
