"""Ranks for the tests of `normlab.distributed`: processes that live for a whole test session and run its functions.

    python pool.py ADDRESS RANKS

All ranks are forked from one process that has imported torch, because importing it takes longer than all tests of a
module. Each connects to the session's listener at ADDRESS, and then runs what it is sent: a function's module and name,
the number of ranks to run it on, and its arguments. The function gets a gloo group of these ranks first.
"""

import datetime
import importlib
import os
import socket
import subprocess
import sys
import tempfile
import traceback
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

import torch
import torch.distributed as dist
from distributed import batches, cases, failures, meshes, noted  # noqa: F401  # once, before the ranks are forked

RANKS = 4
TIMEOUT = 60  # seconds, of a group's collectives
QUICK = 4  # seconds, of a group whose ranks are meant to wait in vain


class Ranks:
    """RANKS processes of this machine."""

    def __init__(self, normlab_root: Path):
        self.folder = tempfile.TemporaryDirectory()
        address = str(Path(self.folder.name) / "listener")
        paths = os.pathsep.join(map(str, (normlab_root, Path(__file__).parents[1], os.environ.get("PYTHONPATH", ""))))
        environment = os.environ | {"PYTHONPATH": paths, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        environment["CUDA_VISIBLE_DEVICES"] = ""  # the ranks have CPU tensors, and a forked process cannot use CUDA
        with Listener(address, backlog=RANKS) as listener:
            self.process = subprocess.Popen([sys.executable, __file__, address, str(RANKS)], env=environment)
            connections = [listener.accept() for _ in range(RANKS)]
        self.connections: list[Connection] = [one for _, one in sorted((one.recv(), one) for one in connections)]

    def __call__(self, function, *args, ranks: int = 2, fresh: int | None = None) -> list:
        """Return what a function returns on each of so many ranks; raise AssertionError if it raises on one.

        fresh: seconds, the timeout of a group of its own, for functions that leave their group broken.
        """
        job = function.__module__, function.__name__, ranks, fresh, args
        for connection in self.connections:
            connection.send(job)
        answers = [connection.recv() for connection in self.connections]
        wrong = [f"rank {rank}:\n{text}" for rank, (right, text) in enumerate(answers) if not right]
        assert not wrong, "\n".join(wrong)
        return [answer for _, answer in answers][:ranks]

    def close(self) -> None:
        """End the processes."""
        for connection in self.connections:
            connection.send(None)
        assert self.process.wait(30) == 0
        self.folder.cleanup()


def serve(rank: int, address: str, ranks: int, port: int) -> None:
    """Run functions until the session ends."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(0, TIMEOUT),
    )
    groups = {count: dist.new_group(list(range(count))) for count in range(1, ranks + 1)}
    with Client(address) as connection:
        connection.send(rank)
        while job := connection.recv():
            try:
                connection.send((True, answer(rank, groups, *job)))
            except Exception:
                connection.send((False, traceback.format_exc()))
    os._exit(0)  # groups that a test has left broken would take their time


def answer(rank: int, groups: dict, module: str, name: str, ranks: int, fresh: int | None, args: tuple):
    """Return what a function returns on this rank, None if it does not run here."""
    if fresh:  # made by all ranks, also by those that have no part in it
        group = dist.new_group(list(range(ranks)), timeout=datetime.timedelta(0, fresh))
    else:
        group = groups[ranks]
    return getattr(importlib.import_module(module), name)(group, *args) if rank < ranks else None


if __name__ == "__main__":
    address, count = sys.argv[1], int(sys.argv[2])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    torch.multiprocessing.start_processes(serve, (address, count, port), count, start_method="fork")
