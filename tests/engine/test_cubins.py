"""Compiled kernels on disk: what is found again, what is not, and what becomes of damage."""

import os
import subprocess
import sys
import threading
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from normlab.engine import cuda, float32, float64
from normlab.engine.compile import cubins, offline
from normlab.kernels.forward import step_2_warp_shuffle, step_4_column_blocks

CC = (9, 0)
SINGLE = np.dtype(np.float32)
KINDS = ((SINGLE, 2, "C"), (SINGLE, 1, "C"))
KERNEL = step_2_warp_shuffle.build(float32)


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """The names of the kernels compiled, by a compiler that only counts; what is kept is kept in tmp_path."""
    names = []

    def compile_cubin(kernel, kinds, cc):
        names.append(kernel.py_func.__name__)
        return offline.Cubin(f"entry{len(names)}", bytes(range(256)) * len(names), "")

    monkeypatch.setattr(offline, "compile_cubin", compile_cubin)
    monkeypatch.setenv("NORMLAB_CACHE_DIR", str(tmp_path))
    return names


def test_the_second_time_nothing_is_compiled(compiled, monkeypatch):
    first = cubins.cubin(KERNEL, KINDS, CC)
    monkeypatch.setattr(offline, "compile_cubin", None)
    assert cubins.cubin(KERNEL, KINDS, CC) == first == ("entry1", bytes(range(256)))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other permissions")
def test_other_users_may_read_what_the_umask_lets_them(compiled, tmp_path):
    before = os.umask(0o022)
    try:
        cubins.cubin(KERNEL, KINDS, CC)
    finally:
        os.umask(before)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("again", ["a builder called anew", "a kernel of the same name and other constants"])
def test_a_kernel_is_known_by_its_name_and_its_closure(compiled, again):
    build = step_4_column_blocks.build.__wrapped__  # without the cache: another dispatcher each time
    cubins.cubin(build(float32, 128), KINDS, CC)
    same = again == "a builder called anew"
    cubins.cubin(build(float32, 128 if same else 64), KINDS, CC)
    assert len(compiled) == (1 if same else 2)


@pytest.mark.parametrize("change", ["kinds", "capability", "accumulator", "sources", "versions", "launch bounds"])
def test_all_that_the_code_depends_on_makes_another_file(compiled, change, monkeypatch):
    cubins.cubin(KERNEL, KINDS, CC)
    kernel, kinds, cc = KERNEL, KINDS, CC
    match change:
        case "kinds":
            kinds = ((SINGLE, 2, "A"), KINDS[1])
        case "capability":
            cc = (8, 0)
        case "accumulator":
            kernel = step_2_warp_shuffle.build(float64)
        case "sources":
            monkeypatch.setattr(cubins, "SOURCES", ("engine", "stages"))
        case "versions":
            monkeypatch.setattr(cubins.metadata, "version", lambda name: "0.0")
        case "launch bounds":
            monkeypatch.setitem(kernel.targetoptions, "launch_bounds", (128, 4))
    cubins._surroundings.cache_clear()
    cubins.cubin(kernel, kinds, cc)
    cubins._surroundings.cache_clear()
    assert len(compiled) == 2


def test_every_source_that_a_kernel_may_be_made_of_counts(monkeypatch, tmp_path):
    for folder in cubins.SOURCES:
        (tmp_path / folder / "inner").mkdir(parents=True)
        (tmp_path / folder / "inner" / "file.py").write_text("old")
    monkeypatch.setattr(cubins, "PACKAGE", tmp_path)
    seen = {cubins._surroundings.__wrapped__()}
    for number, folder in enumerate(("engine", "stages", "kernels"), start=2):
        (tmp_path / folder / "inner" / "file.py").write_text("new")
        seen.add(cubins._surroundings.__wrapped__())
        assert len(seen) == number


@pytest.mark.parametrize("damage", ["empty", "truncated", "a byte changed", "other text"])
def test_a_damaged_file_is_compiled_anew_and_replaced(compiled, damage, tmp_path):
    cubins.cubin(KERNEL, KINDS, CC)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    match damage:
        case "empty":
            file.write_bytes(b"")
        case "truncated":
            file.write_bytes(whole[:-1])
        case "a byte changed":
            file.write_bytes(whole[:-1] + b"?")
        case "other text":
            file.write_bytes("été\n".encode("latin-1"))
    for _ in range(2):
        assert cubins.cubin(KERNEL, KINDS, CC)[0] == "entry2"
    assert list(tmp_path.iterdir()) == [file]


@cuda.jit
def foreign(x, y):
    y[0] = x[0]


def closed_over(value):
    @cuda.jit
    def kernel(x):
        x[0] = value

    kernel.py_func.__module__ = "normlab.kernels.imagined"
    return kernel


def test_kernels_are_kept_only_where_all_that_they_depend_on_is_known(compiled, tmp_path):
    for _ in range(2):
        cubins.cubin(foreign, KINDS, CC)
        cubins.cubin(closed_over(object()), KINDS, CC)
        cubins.cubin(closed_over(foreign), KINDS, CC)
    assert len(compiled) == 6
    assert list(tmp_path.iterdir()) == []


def test_two_kernels_of_one_name_are_told_apart(compiled):
    def build(first):
        if first:

            @cuda.jit
            def kernel(x):
                x[0] = 1
        else:

            @cuda.jit
            def kernel(x):
                x[0] = 2

        kernel.py_func.__module__ = "normlab.kernels.imagined"
        return kernel

    for _ in range(2):
        cubins.cubin(build(True), KINDS, CC)
        cubins.cubin(build(False), KINDS, CC)
    assert len(compiled) == 2


def test_values_of_a_closure_are_told_apart(compiled):
    values = [1, 1.0, True, "1", None, (1, 1), ((1,), 1), np.float32(1), float32, float64, KERNEL, closed_over(1)]
    for value in values:
        cubins.cubin(closed_over(value), KINDS, CC)
    assert len(compiled) == len(values)
    for value in values:
        cubins.cubin(closed_over(value), KINDS, CC)
    assert len(compiled) == len(values)


def test_a_place_that_cannot_be_written_is_told_once_and_hinders_nothing(compiled, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NORMLAB_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="compiled kernels cannot be kept in .*file, so each process compiles anew"):
        assert cubins.cubin(KERNEL, KINDS, CC)[0] == "entry1"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cubins.cubin(KERNEL, KINDS, CC)[0] == "entry2"


def test_readers_see_a_whole_file_or_none_while_others_write(tmp_path):
    path = tmp_path / "kernel.cubin"
    images = [bytes([k]) * 200_000 for k in range(4)]
    stop, tried = threading.Event(), threading.Event()

    def write(k):
        while not stop.is_set():
            try:
                cubins._write(path, str(k), images[k])
            finally:
                tried.set()

    writers = [threading.Thread(target=write, args=[k]) for k in range(4)]
    for writer in writers:
        writer.start()
    seen = []
    try:
        while len(seen) < 300 or not tried.is_set():  # a busy machine reads so often before the first write has ended
            seen.append(cubins._read(path))
        seen.append(cubins._read(path))
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert any(seen)
    assert all(one is None or one[1] == images[int(one[0])] for one in seen)
    assert None not in seen[seen.index(next(filter(None, seen))) :]
    assert list(tmp_path.iterdir()) == [path]


def test_the_place_is_the_variable_s_or_the_platform_s(monkeypatch, tmp_path):
    monkeypatch.setenv("NORMLAB_CACHE_DIR", str(tmp_path))
    assert cubins.directory() == tmp_path
    monkeypatch.delenv("NORMLAB_CACHE_DIR")
    monkeypatch.setattr(Path, "home", lambda: Path("/home/ada"))
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for platform, place in [
        ("linux", "/home/ada/.cache/normlab"),
        ("darwin", "/home/ada/Library/Caches/normlab"),
        ("win32", "/home/ada/AppData/Local/normlab"),
    ]:
        monkeypatch.setattr(sys, "platform", platform)
        assert cubins.directory() == Path(place)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/scratch")
    assert cubins.directory() == Path("/scratch/normlab")


def no_home():
    raise RuntimeError("Could not determine home directory.")


def test_without_a_home_nothing_is_kept(compiled, monkeypatch):
    monkeypatch.delenv("NORMLAB_CACHE_DIR")
    monkeypatch.setattr(Path, "home", no_home)
    assert cubins.cubin(KERNEL, KINDS, CC)[0] == "entry1"
    assert cubins.cubin(KERNEL, KINDS, CC)[0] == "entry2"


IN_A_NEW_PROCESS = """
import sys
import numpy as np
from normlab.engine import float32
from normlab.engine.compile import cubins, offline
from normlab.kernels.forward import step_0_thread_per_row
if sys.argv[1] == "warm":
    offline.compile_cubin = None
single = np.dtype(np.float32)
array, row = (single, 2, "C"), (single, 1, "C")
kinds = (array, None, None, single, array, row, row)
print(cubins.cubin(step_0_thread_per_row.forward_thread_per_row, kinds, (9, 0))[1][:4])
"""


@pytest.mark.skipif(not find_spec("numba_cuda"), reason="kernels are compiled by numba-cuda, not for this platform")
def test_another_process_finds_what_the_compiler_made(tmp_path, monkeypatch):
    monkeypatch.setenv("NORMLAB_CACHE_DIR", str(tmp_path))
    for start in ("cold", "warm"):
        command = [sys.executable, "-c", IN_A_NEW_PROCESS, start]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "b'\\x7fELF'\n"
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("forward_thread_per_row-sm_90-")
