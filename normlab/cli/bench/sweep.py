"""`normlab bench sweep`."""

from functools import partial
from typing import Annotated

import typer

from normlab.cli.bench.measured import Peers, measured
from normlab.cli.errors import refusing
from normlab.cli.options import JsonFile


def bench_sweep(
    seed: Annotated[int, typer.Option(metavar="S", help="The same seed draws the same shapes.")] = 0,
    count: Annotated[str, typer.Option(metavar="N", help="How many shapes.")] = "60",
    peers: Peers = None,
    json_file: JsonFile = None,
) -> None:
    """Draw shapes and measure both norms at them beside a copy and the peers: the distribution and the worst ten.

    The default peers are torch, compile, liger and quack. Exit code: 0, or 2 when the arguments cannot be used or there
    is no GPU.
    """
    from normlab.bench import choices, commands, sweep
    from normlab.bench.machine import NotFitError

    with refusing("bench sweep", NotFitError):
        names = list(sweep.PEERS) if peers is None else choices.peers(peers)
        wanted = sweep.draw(seed, choices.count("--count", count))
        measured(partial(commands.sweep, wanted, seed, names), len(wanted), "both", json_file)
