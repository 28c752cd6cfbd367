"""Compile ahead what `normlab bench norm` is going to run: PYTHONPATH=tests python -m hardware.warm [DTYPE …]

torch.compile takes five seconds a shape, of which the device machine has few. Run before the bench, with the same
$TORCHINDUCTOR_CACHE_DIR and $NORMLAB_CACHE_DIR: the bench finds the kernels there. `--n1 1,16 --n2 65536` as the bench;
`--seed 1 --count 60` for `normlab bench sweep`: 51 s for 40 shapes on 15 processors, after which the sweep took 31 s.
"""

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from normlab.bench import choices, problem, sweep
from normlab.bench.contenders import load_peers, ours


def warm(one: problem.Problem) -> None:
    """Run every contender once; what a contender cannot do is the bench's to report."""
    data = one.draw("cuda")
    for contender in [*ours("both"), *load_peers(["torch", "compile", "liger"])[0]]:
        if one.direction in contender.directions:
            try:
                getattr(contender, one.direction)(data)()
            except Exception as error:
                print(f"{one}, {contender.name}: {error}")


def main() -> None:
    """All problems, in as many processes as there are processors, but two."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("dtypes", nargs="*", default=choices.DEFAULT_DTYPES)
    parser.add_argument("--n1", action="append")
    parser.add_argument("--n2", action="append")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--count", type=int, default=sweep.COUNT)
    options = parser.parse_args()
    n1, n2 = choices.counts("--n1", options.n1), choices.counts("--n2", options.n2) or list(problem.WIDTHS)
    wanted = problem.problems(problem.NORMS, problem.DIRECTIONS, options.dtypes, n1, n2, 2**27)
    if options.seed is not None:
        wanted = sweep.draw(options.seed, options.count)
    with ProcessPoolExecutor(max(1, len(os.sched_getaffinity(0)) - 2), mp_context=get_context("spawn")) as pool:
        list(pool.map(warm, wanted))


if __name__ == "__main__":
    main()
