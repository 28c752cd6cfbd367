"""`normlab bench host`."""

from normlab.cli.bench.measured import Directions, Norms, Peers, measured
from normlab.cli.errors import refusing
from normlab.cli.options import JsonFile


def bench_host(
    norm: Norms = "both",
    direction: Directions = "forward",
    peers: Peers = None,
    json_file: JsonFile = None,
) -> None:
    """What does a call cost on the host, with 8 x 4096 bfloat16 elements to do on the GPU?

    Exit code: 0, or 2 when the arguments cannot be used or there is no GPU.
    """
    from normlab.bench import choices, commands, problem
    from normlab.bench.machine import NotFitError

    with refusing("bench host", NotFitError):
        norms = choices.one_or_both("--norm", norm, problem.NORMS)
        directions = choices.one_or_both("--direction", direction, problem.DIRECTIONS)
        names = choices.peers(peers)
        measured(lambda advance: commands.host(norms, directions, names), None, direction, json_file)
