"""What the server has imported that solutions' processes are forked from, and its garbage collector never looks at.

A collection in a process that was just forked touched, and so copied, all of that memory: 50 ms of 70.
"""

import gc

from normlab.course import worker  # noqa: F401

gc.freeze()
