"""Keep a student's code from files, processes and sockets, even if the rules for its source (`rules`) have a gap.

Python tells an audit hook of such acts before they happen, and no code can take a hook away. What the grader's own code
does in the process, such as compiling a kernel or drawing a picture, happens while the wall is down. So the wall is no
sandbox: Python tells no hook of os.mkfifo or _posixsubprocess, and a thread or a patched function of normlab may act
while the wall is down. From these only the rules keep a file.
"""

import os
import site
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import normlab

# The beginnings of the names of forbidden events.
FORBIDDEN = (
    *("os.fork", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.kill", "subprocess.", "pty.", "socket."),
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown"),
    *("os.utime", "os.setxattr", "os.removexattr", "os.chflags"),
    *("os.startfile", "_winapi.CreateProcess", "_winapi.TerminateProcess"),  # of Windows
    *("os.putenv", "os.unsetenv", "shutil.", "sqlite3.", "ctypes.dlopen", "ctypes.dlsym", "resource."),
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _readable() -> Callable[[str], bool]:
    """Return a function: True for files of Python, its packages and normlab, which imports and tracebacks read."""
    own = {sys.prefix, sys.base_prefix, *site.getsitepackages(), str(Path(normlab.__file__).parent)}
    installed, imported = (tuple(f"{os.path.realpath(folder)}{os.sep}" for folder in one) for one in (own, sys.path))
    code = (".py", ".pyc", os.sep)  # a folder's path ends with a separator: an import lists it
    return lambda path: path.startswith(installed) or (path.startswith(imported) and path.endswith(code))


def build() -> Callable[[], Any]:
    """Add the hook to this process, for good, and return a context manager within which the wall stands."""
    standing = False
    readable = _readable()

    def hook(event: str, arguments: tuple) -> None:
        if event == "sys._getframe" or not standing:  # the simulator asks for frames at every access
            return
        if event == "open":
            path, _, flags = arguments
            if not isinstance(path, int) and (flags & WRITING or not readable(os.path.realpath(os.fsdecode(path)))):
                raise PermissionError(f"a solution has no use for the file {os.fsdecode(path)!r}")
        elif event in ("os.listdir", "os.scandir"):
            if not readable(os.path.join(os.path.realpath(os.fsdecode(arguments[0] or ".")), "")):
                raise PermissionError(f"a solution has no use for the folder {arguments[0]!r}")
        elif event.startswith(FORBIDDEN):
            raise PermissionError(f"a solution has no use for {event}")

    @contextmanager
    def wall() -> Iterator[None]:
        nonlocal standing
        standing = True
        try:
            yield
        finally:
            standing = False

    sys.addaudithook(hook)
    return wall
