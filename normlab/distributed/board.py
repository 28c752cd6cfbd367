"""The notice board of a process group: ranks that disagree, stop or stay away are named in one error on every rank.

Collectives assume that all ranks bring messages of one size. If they do not, gloo ends the process and NCCL hangs. So
ranks write to the store that their group was made with. It is no part of a collective, so no rank has to wait for it.

- A call whose shapes and options a rank has not seen before is announced, and waits until all ranks have announced
  theirs. A call seen before costs nothing.
- A rank whose arguments are wrong announces its error.
- A rank that has waited for an all-gather for PATIENCE seconds announces its call, and reads the announcements.

Calls are numbered in the order of a group's calls, the same on all ranks. On CUDA only the first two hold: the host
does not wait there, and NCCL's watchdog reports a rank that stays away.
"""

from collections.abc import Callable, Hashable
from contextlib import suppress
from datetime import timedelta
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import torch.distributed as dist

from normlab.distributed.private import store_of, timeout_of

PATIENCE = 1.0  # seconds; a rank that is only slow is later than that in few steps
STOPPED = "!"  # before the text of an error
MOST_NAMED = 8  # ranks per sentence

_boards: "WeakKeyDictionary[dist.ProcessGroup, Board]" = WeakKeyDictionary()


def board_of(group: dist.ProcessGroup) -> "Board":
    """Return this process's end of a group's notice board."""
    board = _boards.get(group)
    if board is None:
        board = _boards[group] = Board(group)
    return board


class Board:
    """One rank's end of the notice board of a group."""

    def __init__(self, group: dist.ProcessGroup):
        self.store, self.timeout = store_of(group), timeout_of(group)
        self.patience = timedelta(seconds=min(PATIENCE, self.timeout.total_seconds() / 4))
        self.rank, self.names = dist.get_rank(group), dist.get_process_group_ranks(group)
        self.number = 0
        # A process that destroys its groups and makes them anew may find the old groups' words in the same store.
        self.made = 0 if self.store is None else self.store.add(f"normlab/boards/{self.rank}", 1)
        self.seen: set[Hashable] = set()
        self.written: list[str] = []

    def agree(self, call: Hashable, words: Callable[[], str]) -> None:
        """Begin the group's next call. Wait for all ranks' announcements if this rank has not seen such a call.

        words: describes the call; ranks agree if their words are equal.

        Raises:
            ValueError: the ranks disagree.
            RuntimeError: a rank has stopped, or has not come within the group's timeout.
        """
        self.number += 1
        if call in self.seen or self.store is None:
            return
        self._write(words())
        self._wait(self.timeout)
        self._judge(everyone=True)
        self.seen.add(call)
        # All ranks are in this call, so none reads the words of earlier calls any more.
        while self.written[:-1]:
            self.store.delete_key(self.written.pop(0))

    def finish(self, work: Any, words: Callable[[], str]) -> None:
        """Wait for a CPU's collective of the call that `agree` began.

        Raises:
            ValueError, RuntimeError: as `agree`.
        """
        try:
            while not _done(work, self.patience):
                self._write(words())
                self._judge()
        except RuntimeError as error:
            if self.store is None or not work.is_completed():
                raise
            self._write(words())
            self._judge(everyone=True, failed=error)

    def stopped(self, error: Exception) -> None:
        """Announce that this rank does not come to the group's next call."""
        self.number += 1
        self._write(f"{STOPPED}{type(error).__name__}: {error}")

    def _key(self, rank: int) -> str:
        return f"normlab/{self.made}/{self.number}/{rank}"

    def _write(self, text: str) -> None:
        """Write this rank's words for the current call, once."""
        key = self._key(self.rank)
        if self.store is None or key in self.written:
            return
        self.store.set(key, text)
        self.written.append(key)

    def _wait(self, timeout: timedelta) -> None:
        """Wait until all ranks have written their words for the current call, but no longer than a timeout."""
        with suppress(RuntimeError):
            self.store.wait([self._key(rank) for rank in range(len(self.names))], timeout)

    def _read(self) -> tuple[dict[str, list[int]], list[int]]:
        """Return what the ranks wrote for the current call, each with its writers, and the ranks that wrote nothing."""
        said: dict[str, list[int]] = {}
        absent = []
        for rank, name in enumerate(self.names):
            if self.store.check([self._key(rank)]):
                said.setdefault(self.store.get(self._key(rank)).decode(), []).append(name)
            else:
                absent.append(name)
        return said, absent

    def _judge(self, everyone: bool = False, failed: Exception | None = None) -> None:
        """Raise an error if the ranks' words tell of one; with `everyone` also if a rank has written none.

        failed: the collective's error, raised if the words explain nothing.
        """
        if self.store is None:
            return
        said, absent = self._read()
        if absent and (len(said) > 1 or any(text.startswith(STOPPED) for text in said)):
            self._wait(2 * self.patience)  # so that all ranks raise the same error
            said, absent = self._read()
        errors = {text.removeprefix(STOPPED): ranks for text, ranks in said.items() if text.startswith(STOPPED)}
        if errors:
            raise RuntimeError(f"a collective norm cannot run: {_sentences(errors, ' stopped with ')}") from failed
        if len(said) > 1:
            raise ValueError(f"the ranks disagree on their norm: {_sentences(said, ': ')}") from failed
        if everyone and absent:
            _raise_absent(absent, next(iter(said)), self.timeout, failed)
        if failed is not None:
            raise failed


def _raise_absent(ranks: list[int], words: str, timeout: timedelta, failed: Exception | None) -> NoReturn:
    seconds = f"{timeout.total_seconds():g} s"
    raise RuntimeError(f"{_named(ranks)} did not come within the group's timeout of {seconds} to {words}") from failed


def _done(work: Any, patience: timedelta) -> bool:
    """Return True if a collective ends within some time. A collective that fails raises its error."""
    try:
        work.wait(timeout=patience)
    except RuntimeError:
        if work.is_completed():
            raise
        return False
    return True


def _named(ranks: list[int]) -> str:
    """Return ranks in words.

    >>> _named([3]), _named([0, 2])
    ('rank 3', 'ranks 0, 2')
    """
    more = f" and {len(ranks) - MOST_NAMED} more" if len(ranks) > MOST_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:MOST_NAMED]))}{more}"


def _sentences(said: dict[str, list[int]], verb: str) -> str:
    """Return what each set of ranks said, the set with the lowest rank first."""
    return "; ".join(f"{_named(ranks)}{verb}{text}" for text, ranks in sorted(said.items(), key=lambda one: one[1]))
