"""Run a function on several ranks of torch.distributed, all on this machine's CPU, as a notebook needs it.

Each rank is a process of its own that is forked from the notebook's, so it knows the notebook's functions and arrays.
"""

import multiprocessing
import pickle
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

SECONDS = 60  # that ranks wait for each other


def on_ranks(count: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return what function(*arguments) returns on each of `count` ranks of a new gloo group, in the order of ranks.

    The function may call torch.distributed, whose default group has all ranks. What it returns is pickled.

    Raises:
        RuntimeError: the function raised an error on some ranks. The message has their tracebacks.
        ValueError: this system cannot fork processes (Windows), or `count` is below 1.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        raise ValueError("on_ranks needs a system that can fork processes, such as Linux or macOS")
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    import torch.distributed  # noqa: F401  # before the fork: importing it takes a second, and each rank would do so

    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        meeting = (Path(folder) / "meeting").as_uri()
        ranks, ends = [], []
        for rank in range(count):
            mine, ours = context.Pipe(duplex=False)
            ranks.append(context.Process(target=_serve, args=(rank, count, meeting, ours, function, arguments)))
            ranks[-1].start()
            ours.close()  # before the next rank is forked: only the rank itself has it, so its death ends the pipe
            ends.append(mine)
        answers = [_received(mine) for mine in ends]
        for process in ranks:
            process.join()
    wrong = [f"rank {rank}:\n{text}" for rank, (right, text) in enumerate(answers) if not right]
    if wrong:
        raise RuntimeError("\n".join(wrong))
    return [answer for _, answer in answers]


def _received(connection: Connection) -> tuple[bool, Any]:
    try:
        return pickle.loads(connection.recv_bytes())
    except EOFError:
        return False, "the process ended without an answer"


def _serve(rank: int, count: int, meeting: str, answers: Connection, function: Callable, arguments: tuple) -> None:
    """Be a rank: join the group, run the function, and send (True, result) or (False, traceback)."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    try:
        torch.set_num_threads(1)
        wait = timedelta(seconds=SECONDS)
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=count, timeout=wait)
        dist.barrier()  # a rank that dies at once would else break the connection of one that is still joining
        # Pickled here: `send` would leave a tensor in memory that ends with this process.
        answers.send_bytes(pickle.dumps((True, function(*arguments))))
        dist.destroy_process_group()
    except Exception:
        answers.send_bytes(pickle.dumps((False, traceback.format_exc())))
