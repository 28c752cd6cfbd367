"""`normlab bench`: norm, sweep, family, ladder, host, report."""

import signal

import typer

from normlab.cli.bench.family import bench_family
from normlab.cli.bench.host import bench_host
from normlab.cli.bench.ladder import bench_ladder
from normlab.cli.bench.norm import bench_norm
from normlab.cli.bench.report import bench_report
from normlab.cli.bench.sweep import bench_sweep

bench = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="How fast is it? Beside the peers, on a GPU.")


@bench.callback()
def bench_anything() -> None:
    """How fast is it? Beside the peers, on a GPU."""
    # `kill` and `timeout` are answered like Ctrl-C: what has been measured is written and shown.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


bench.command("norm", short_help="Fractions of the copy bandwidth, shape by shape, beside the peers.")(bench_norm)
bench.command("sweep", short_help="Drawn shapes beside the peers: the distribution, and the worst ten.")(bench_sweep)
bench.command("family", short_help="Batch, instance, group and layer norm beside PyTorch, both layouts.")(bench_family)
bench.command("ladder", short_help="Every step of a ladder: speed, registers, occupancy.")(bench_ladder)
bench.command("host", short_help="A call's cost on the host: eager, in a CUDA graph, the first of a process.")(
    bench_host
)
bench.command("report", short_help="The records' tables as Markdown, and their plot; no GPU.")(bench_report)
