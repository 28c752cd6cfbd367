"""What Numba refuses is refused by the check, in a sentence with the line; and what Numba compiles is not."""

import inspect
import linecache
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numba
import numpy as np
import pytest
from engine import refused_kernels, taken_kernels
from numba import cuda

from normlab.engine.compile import check, front_end
from normlab.engine.compile.offline import compile_cubin
from normlab.engine.compile.type_names import split_types, told_type
from normlab.sim import CompilerError, sanitize, simulate, trace

DEVICE = ("helper", "needs_two", "fact", "with_dict", "between")
REFUSED = [name for name, one in vars(refused_kernels).items() if inspect.isfunction(one) and name not in DEVICE]
TAKEN = [name for name, one in vars(taken_kernels).items() if inspect.isfunction(one)]
KERNELS = {name: getattr(refused_kernels, name, None) or getattr(taken_kernels, name) for name in (*REFUSED, *TAKEN)}
MARK = re.compile("# refused: ?(.*)$", re.MULTILINE)


def arguments_of(kernel):
    """Return arguments by the names of a kernel's parameters."""
    made = {"n": 4}
    made |= {name: np.ones(64, np.float32) for name in "xy"}
    made |= {name: np.ones((8, 8), np.float32) for name in "ab"}
    return tuple(made[name] for name in inspect.signature(kernel).parameters)


def marked(function):
    """Return the number of a function's line with a comment, and the words of the comment."""
    lines, first = inspect.getsourcelines(function)
    ((number, words),) = [(first + i, found[1]) for i, line in enumerate(lines) if (found := MARK.search(line))]
    return number, words


@pytest.mark.parametrize("name", REFUSED)
def test_what_numba_refuses_is_refused_in_a_sentence_with_its_line(name):
    kernel = KERNELS[name]
    arguments = arguments_of(kernel)
    before = [np.copy(argument) for argument in arguments]
    inside = {
        "inside_a_device_function": refused_kernels.with_dict.py_func,
        "recursion_from_a_number": refused_kernels.fact.py_func,
    }.get(name, kernel)
    line, words = marked(inside)
    with pytest.raises(CompilerError) as caught:
        simulate(cuda.jit(kernel), check=True)[1, 1](*arguments)
    said = str(caught.value).split("; at /")[0]  # the line after it has the words as a comment
    assert re.search(words, said)
    assert (caught.value.line.file, caught.value.line.number) == (refused_kernels.__file__, line)
    text = str(caught.value)
    assert text.startswith(f"kernel '{name}' does not compile for a GPU: ")
    assert text.count("\n") == 0
    assert len(text.replace(str(Path(refused_kernels.__file__).parent), "")) < 377, "wherever the checkout lies"
    assert not re.search(r"Literal\[|UniTuple|TypingError|opcode|NRT|<built-in|<class", said)
    for argument, kept in zip(arguments, before, strict=True):  # nothing has run
        np.testing.assert_array_equal(argument, kept)


def test_numpy_s_random_numbers_are_named_also_after_a_cpu_s_compilation():
    def on_the_cpu():
        return np.random.random()  # noqa: NPY002

    numba.njit(on_the_cpu)()
    kernel = cuda.jit(KERNELS["numpy_random"])
    with pytest.raises(CompilerError, match=r"there is no numpy\.random\.random on a GPU; at"):
        simulate(kernel, check=True)[1, 1](np.ones(1, np.float64))


@pytest.mark.parametrize("name", TAKEN)
def test_what_numba_compiles_is_not_refused(name):
    kernel = cuda.jit(KERNELS[name])
    arguments = arguments_of(kernel.py_func)
    told = check.check(kernel, kernel.py_func, arguments, list(arguments))
    assert not isinstance(told, CompilerError), told


@pytest.mark.parametrize("name", KERNELS)
def test_numba_itself_agrees(name):
    """Compiled to a cubin, as a launch on a GPU does, with no way through the check."""
    kernel = cuda.jit(KERNELS[name])
    kinds = [
        np.dtype(np.int64) if isinstance(one, int) else (one.dtype, one.ndim, "C")
        for one in arguments_of(KERNELS[name])
    ]
    if name in TAKEN:
        compile_cubin(kernel, tuple(kinds), (9, 0))
    else:
        with pytest.raises(Exception):  # noqa: B017, PT011 - errors of every kind; the compiler reaches no cubin
            compile_cubin(kernel, tuple(kinds), (9, 0))


@pytest.mark.parametrize("face", [simulate, sanitize, trace])
def test_every_face_checks_if_asked_and_runs_unchecked_if_not(face):
    kernel = cuda.jit(KERNELS["a_dict"])
    x = np.zeros(1, np.float32)
    with pytest.raises(CompilerError, match="cannot use a dict"):
        face(kernel, check=True)[1, 1](x)
    assert x[0] == 0
    face(kernel)[1, 1](x)
    assert x[0] == 1


def test_a_kernel_is_compiled_once_for_its_types_and_options(monkeypatch):
    asked = []
    compiled = check.compiled
    monkeypatch.setattr(check, "compiled", lambda *given, **options: asked.append(given) or compiled(*given, **options))

    @cuda.jit
    def kernel(x, n):
        x[cuda.grid(1)] = n

    for x, n in ((np.zeros(1), 1), (np.ones(5), 7), (np.zeros(1, np.float32), 1), (np.zeros(1), 1.5), (np.zeros(3), 2)):
        simulate(kernel, check=True)[1, 1](x, n)
    assert len(asked) == 3
    refused = cuda.jit(KERNELS["a_dict"])
    for _ in range(3):
        with pytest.raises(CompilerError) as caught:
            simulate(refused, check=True)[1, 1](np.zeros(1))
        assert len(caught.traceback) < 6
    assert len(asked) == 4


def test_a_launch_with_too_few_arguments_is_told_as_ever():
    with pytest.raises(TypeError, match=r"takes 1 argument \(x\), got 0"):
        simulate(cuda.jit(KERNELS["a_dict"]), check=True)[1, 1]()


def with_a_default(x, n=3):
    x[0] = n


def test_a_default_must_be_given_to_a_launch():
    kernel = cuda.jit(with_a_default)
    simulate(kernel, check=True)[1, 1](np.zeros(1), 3)
    with pytest.raises(CompilerError, match=r"a launch gives each of its 2 parameters a value, .* it gave 1"):
        simulate(kernel, check=True)[1, 1](np.zeros(1))


def typed(*arguments):
    """Return the types of arguments, as their names."""
    adopted = [np.asarray(one) if isinstance(one, np.ndarray) else one for one in arguments]
    return [str(check.type_of(*pair)) for pair in zip(arguments, adopted, strict=True)]


def test_types_are_those_of_a_launch():
    frozen = np.zeros(2)
    frozen.flags.writeable = False
    assert typed(np.zeros((2, 3)), np.zeros((2, 3)).T, np.zeros((4, 6))[::2, ::2], np.zeros((2, 3), order="F")[0]) == [
        "array(float64, 2d, C)",
        "array(float64, 2d, F)",
        "array(float64, 2d, A)",
        "array(float64, 1d, A)",
    ]
    assert typed(frozen) == ["readonly array(float64, 1d, C)"]
    assert typed(1, 1.0, True, 1j, np.float32(1), np.int8(1), np.uint64(1), None) == [
        *("int64", "float64", "bool", "complex128", "float32", "int8", "uint64", "none"),
    ]
    assert typed((1, np.zeros(1)), (2, 3)) == ["Tuple(int64, array(float64, 1d, C))", "UniTuple(int64 x 2)"]
    with pytest.raises(TypeError, match="Numba has no type for the object"):
        check.type_of(object(), object())
    swapped = np.zeros(2, ">f4")
    with pytest.raises(TypeError, match=r"Numba has no type for an array of dtype\('>f4'\)"):
        check.type_of(swapped, swapped)


def test_torch_tensors_and_bfloat16_have_types():
    torch = pytest.importorskip("torch")

    @cuda.jit
    def add(x, y):
        x[cuda.grid(1)] += y[cuda.grid(1)]

    x, y = torch.ones(4, dtype=torch.bfloat16), torch.ones(4)
    simulate(add, check=True)[1, 4](x, y)
    assert x.tolist() == [2.0] * 4


def test_a_plain_function_is_checked_and_one_that_numba_compiled_already_is_not():
    x = np.zeros(4)
    with pytest.raises(CompilerError, match="cannot use a dict"):
        simulate(KERNELS["a_dict"], check=True)[1, 1](x)

    specialised = SimpleNamespace(py_func=KERNELS["a_dict"], specialized=True, targetoptions={})
    simulate(specialised, check=True)[1, 1](x)
    assert x[0] == 1


def test_a_kernel_without_source_is_refused_too():
    names = {"cuda": cuda}
    exec("def kernel(x):\n    x[0] = {1: 2}[1]\n", names)
    with pytest.raises(CompilerError, match="a dict") as caught:
        simulate(cuda.jit(names["kernel"]), check=True)[1, 1](np.zeros(1))
    assert caught.value.line.number == 2


def test_without_numba_the_kernel_runs_unchecked_with_a_warning():
    code = """
import sys, warnings
sys.modules["numba"] = None
import numpy as np
from normlab.sim import simulate
def kernel(x):
    x[0] = {1: 2}[1]
x = np.zeros(1)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    simulate(kernel, check=True)[1, 1](x)
print(x[0], len(told), told[0].message, told[0].filename)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("2.0 1 the kernel runs without the compiler's check, which needs numba-cuda")
    assert done.stdout.endswith("<string>\n")


def test_the_simulator_loads_numba_only_if_asked_to():
    code = "import sys, numpy as np; from normlab.sim import simulate; k = lambda x: None; "
    code += (
        "simulate(k)[1, 1](np.zeros(1)); print('numba' in sys.modules); simulate(k, check=True)[1, 1](np.zeros(1)); "
    )
    code += "print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_types_are_told_in_words():
    assert split_types("array(float32, 1d, C), UniTuple(int64 x 2), Tuple(a, b)") == [
        *("array(float32, 1d, C)", "UniTuple(int64 x 2)", "Tuple(a, b)"),
    ]
    assert told_type("readonly array(int8, 1d, A)") == "an array of int8"
    assert [told_type(name) for name in ("none", "unicode_type", "Literal[str](a)", "uint8")] == [
        *("None", "a text", "the text 'a'", "a uint8"),
    ]


def test_what_no_sentence_is_known_for_is_quoted_in_one_line():
    error = RuntimeError("Failed in cuda mode pipeline\n  something new, defined at /a.py (3)\nDuring: typing")
    told, line = front_end.sentence(error, front_end.Site(None, 7))
    assert (told, line) == ("Numba does not compile this: something new", 7)


def test_a_folder_whose_name_begins_as_a_library_s_is_no_library(tmp_path, monkeypatch):
    (tmp_path / "normlab_mine").mkdir()
    file = tmp_path / "normlab_mine" / "helpers.py"
    file.write_text("from numba import cuda\n\n@cuda.jit(device=True)\ndef helper(x):\n    return x.nothing\n")
    helper = runpy.run_path(str(file))["helper"]

    def kernel(x):
        x[0] = helper(x)

    library = type(front_end.LIBRARIES[0])(tmp_path / "normlab")
    monkeypatch.setattr(front_end, "LIBRARIES", (*front_end.LIBRARIES, library))
    refused = front_end.refusal(cuda.jit(kernel), ((np.dtype("float32"), 1),))
    assert (refused.file, refused.line) == (str(file), 5)


def test_a_device_function_of_an_ipython_cell_is_named_with_the_cell(monkeypatch):
    cells = {
        "<ipython-input-1-a>": "@cuda.jit(device=True)\ndef helper(x):\n    return x[0] + 'a'\n",
        "<ipython-input-2-b>": "@cuda.jit\ndef kernel(x):\n    x[0] = helper(x)\n",
    }
    names = {"cuda": cuda}
    for name, text in cells.items():
        monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(True), name))
        exec(compile(text, name, "exec"), names)
    refused = front_end.refusal(names["kernel"], ((np.dtype("float32"), 1),))
    assert (refused.file, refused.line) == ("<ipython-input-1-a>", 3)
