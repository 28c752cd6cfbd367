"""What every Python that a test of `suite` starts calls first, so that its kernels run in normlab's simulator."""

import sys


def simulate_here() -> None:
    """Replace the host side of numba.cuda for good, except in pytest itself, where `suite_plugin` does."""
    if "pytest" not in sys.argv[0] and "-m" not in sys.orig_argv[1:3]:
        from normlab.run.launcher import Launcher
        from normlab.run.stand_in import replace_for_good

        replace_for_good(Launcher)
