"""Races of scope and fence, after the patterns of ScoR's 32 microbenchmarks (Kamath, George and Basu, ISCA 2020).

Threads hand `data[0]` over: between blocks, or between warps of one block; by an atomic, by a flag or by a lock; with a
fence of the device, of the block, or none. The names are the original's.

What differs from the original:

- Numba has no atomics of a block's scope. `race_interblock_blkatom` cannot be written; in nine others the atomic is of
  the device's scope, and the fences keep their scopes.
- The three `norace_intrawarp` programs are right only on GPUs whose warps run in step, before Volta. Today they race.
- Four racy ones lack a fence, or have one of too small a scope, after a lock is taken. The sanitizer does not ask for
  that fence (`clocks.py` says why), and finds nothing.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .texts import kernel_of

DEVICE, BLOCK, NONE = "cuda.threadfence()", "cuda.threadfence_block()", "pass"
SEND, WAIT = "cuda.atomic.exch(flag, 0, 1)", "while cuda.atomic.exch(flag, 0, 0) == 0: pass"
HANDED, NEXT = "while cuda.atomic.add(flag, 0, 0) != {}: pass", "cuda.atomic.exch(flag, 0, {})"
THREADS = {  # which threads a program has
    "interblock": ("cuda.blockIdx.x == 0", "cuda.blockIdx.x == 1"),
    "interwarp": ("cuda.threadIdx.x == 0", "cuda.threadIdx.x == 32"),
    "interwarp-block": tuple(
        f"cuda.blockIdx.x == {block} and cuda.threadIdx.x == {thread}" for block in (0, 1) for thread in (0, 32)
    ),
    "intrawarp": ("True",),
}
NOT_ASKED_FOR = (
    "race_interblock_lock-blkfence_waw",
    "race_interblock_lock-no-stf_waw",
    "race_interwarp_blklock-no-stf_waw",
    "race_interwarp_dev-blklock-no-stf_waw",
)


@dataclass(frozen=True)
class Handover:
    """One program: its name, and what each of its threads does."""

    name: str
    steps: tuple[tuple[str, ...], ...]

    def __init__(self, name: str, *steps: tuple[str, ...]):
        """Let the first thread do `steps[0]`, the second one `steps[1]`, …"""
        vars(self).update(name=name, steps=steps)

    @property
    def racy(self) -> bool:
        """Whether it races on today's GPUs."""
        return not self.name.startswith("norace") or "intrawarp" in self.name

    @property
    def configuration(self) -> tuple[int, int]:
        """Blocks, and threads of a block."""
        return {"interblock": (2, 1), "intrawarp": (1, 32), "interwarp": (1, 64)}.get(self._between, (2, 64))

    @property
    def _between(self) -> str:
        return self.name.split("_")[1]

    @cached_property
    def kernel(self) -> Any:
        """The kernel."""
        threads = THREADS[self._between]
        lines = [
            line
            for thread, steps in zip(threads, self.steps, strict=True)
            for line in (f"    if {thread}:", *(f"        {step}" for step in steps))
        ]
        return kernel_of(f"<scor {self.name}>", "\n".join(["def kernel(data, flag, lock, out):", *lines]) + "\n")

    @staticmethod
    def arguments() -> tuple[np.ndarray, ...]:
        """Data, flag, lock, and what is read."""
        return tuple(np.zeros(1, np.int32) for _ in range(4))


def _locked(work: str, after: str = DEVICE, before: str = DEVICE) -> tuple[str, ...]:
    """Return work under the lock, with a fence after the lock is taken and one before it is free again."""
    return "while cuda.atomic.cas(lock, 0, 0, 1) != 0: pass", after, work, before, "cuda.atomic.exch(lock, 0, 0)"


ONE, TWO, MORE, READ = "data[0] = 1", "data[0] = 2", "data[0] += 2", "out[0] = data[0]"
SWAP_ONE, SWAP_TWO = "cuda.atomic.exch(data, 0, 1)", "cuda.atomic.exch(data, 0, 2)"
BLOCK_LOCK = {"after": BLOCK, "before": BLOCK}

HANDOVERS = [
    Handover("norace_interblock_atom", (SWAP_ONE,), (SWAP_TWO,)),
    Handover("norace_interblock_fence_raw", (ONE, DEVICE, SEND), (WAIT, READ)),
    Handover("norace_interblock_lock_waw", _locked(ONE), _locked(TWO)),
    Handover(
        "norace_interwarp-block_fence-atom_hrd-indirect",
        (SWAP_ONE, BLOCK, NEXT.format(1)),
        (HANDED.format(1), SWAP_TWO, DEVICE, NEXT.format(2)),
        (HANDED.format(2), SWAP_ONE, BLOCK, NEXT.format(3)),
        (HANDED.format(3), SWAP_TWO),
    ),
    Handover(
        "norace_interwarp-block_fence_hrf-indirect",
        (ONE, BLOCK, NEXT.format(1)),
        (HANDED.format(1), MORE, DEVICE, NEXT.format(2)),
        (HANDED.format(2), MORE, BLOCK, NEXT.format(3)),
        (HANDED.format(3), READ),
    ),
    Handover("norace_interwarp_blkatom", (SWAP_ONE,), (SWAP_TWO,)),
    Handover("norace_interwarp_blkfence_raw", (ONE, BLOCK, SEND), (WAIT, READ)),
    Handover("norace_interwarp_blklock_waw", _locked(ONE, **BLOCK_LOCK), _locked(TWO, **BLOCK_LOCK)),
    Handover("norace_interwarp_dev-blkatom", (SWAP_ONE,), (SWAP_TWO,)),
    Handover("norace_interwarp_dev-blklock_waw", _locked(ONE), _locked(TWO, **BLOCK_LOCK)),
    Handover("norace_interwarp_fence_raw", (ONE, DEVICE, SEND), (WAIT, READ)),
    Handover("norace_intrawarp_none-blkatom", (SWAP_ONE, TWO)),
    Handover("norace_intrawarp_none-blklock-no-tf_waw", (*_locked(ONE, BLOCK, NONE), TWO)),
    Handover("norace_intrawarp_none-blklock_waw", (*_locked(ONE, **BLOCK_LOCK), TWO)),
    Handover("race_interblock_blkfence_raw", (ONE, BLOCK, SEND), (WAIT, READ)),
    Handover("race_interblock_blklock_waw", _locked(ONE, **BLOCK_LOCK), _locked(TWO, **BLOCK_LOCK)),
    Handover("race_interblock_fence_rtraw", (READ, DEVICE, SEND, READ), (WAIT, ONE)),
    Handover("race_interblock_lock-blkfence_waw", _locked(ONE, after=BLOCK), _locked(TWO)),
    Handover("race_interblock_lock-no-stf_waw", _locked(ONE, after=NONE), _locked(TWO)),
    Handover("race_interblock_lock-no-tf_waw", _locked(ONE, before=NONE), _locked(TWO, before=NONE)),
    Handover("race_interblock_none-atom_waw", (SWAP_ONE,), (TWO,)),
    Handover("race_interblock_none-lock_rtraw", (*_locked(READ), ONE), _locked(READ)),
    Handover("race_interblock_none-lock_waw", _locked(ONE), (TWO,)),
    Handover("race_interwarp_blklock-no-stf_waw", _locked(ONE, NONE, BLOCK), _locked(TWO, **BLOCK_LOCK)),
    Handover("race_interwarp_blklock-no-tf_waw", _locked(ONE, BLOCK, NONE), _locked(TWO, BLOCK, NONE)),
    Handover("race_interwarp_dev-blklock-no-stf_waw", _locked(ONE, after=NONE), _locked(TWO, **BLOCK_LOCK)),
    Handover("race_interwarp_dev-blklock-no-tf_waw", _locked(ONE, before=NONE), _locked(TWO, BLOCK, NONE)),
    Handover("race_interwarp_none-atom_waw", (SWAP_ONE,), (TWO,)),
    Handover("race_interwarp_none-blkatom_waw", (SWAP_ONE,), (TWO,)),
    Handover("race_interwarp_none-blklock_waw", _locked(ONE), (TWO,)),
    Handover("race_interwarp_none-lock_waw", _locked(ONE), (TWO,)),
]
