"""Prepare the fork server, which imports this module: every solution's process is a fork of the server.

The module imports everything that such a process needs, and hides the imported objects from the garbage collector. A
garbage collection in a forked process would otherwise write to these objects' memory, and the system would have to copy
it. That took 50 of the 70 ms of a process.
"""

import gc

from normlab.course import worker  # noqa: F401

gc.freeze()
