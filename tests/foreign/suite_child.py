"""Imported by every Python that a test of `suite` starts: its kernels run in normlab's simulator."""

import sys

if "pytest" not in sys.argv[0] and "-m" not in sys.orig_argv[1:3]:  # pytest itself loads `suite_plugin`
    from normlab.run.launcher import Launcher
    from normlab.run.stand_in import replace_for_good

    replace_for_good(Launcher)
