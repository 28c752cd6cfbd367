"""What is told from a file's source alone, each with its line."""

import pytest

from normlab.course import catalogue, given, rules

SKELETON = catalogue.skeleton("10")
BODY = "    # Your lines.\n"
RIGHT = """\
    for level in range(5):
        value += cuda.shfl_sync(0xFFFFFFFF, value, (lane + (1 << level)) & 31)
    return value
"""


def found(lines="", above=""):
    source = SKELETON.replace("from normlab.engine import cuda\n", "from normlab.engine import cuda\n" + above)
    broken = rules.broken(source.replace(BODY, BODY + lines + RIGHT), SKELETON)
    return broken and (broken.kind, broken.text)


def test_a_right_solution_breaks_no_rule():
    assert found() is None
    assert found("    # a comment\n    half = float(lane) / 2\n") is None
    assert found(above="from math import sqrt\n\nTURNS = 5 * 1\n_HALF = TURNS / 2\n") is None
    numbers = "import math\n\nimport numpy as np\nfrom normlab.engine import float32\n\nTHREADS: int = 64\n"
    assert (
        found(above=numbers + "LOWEST = -math.inf\nZERO = float32(0)\nONES = np.float32(1), float32(THREADS)\n") is None
    )
    assert found("    zero = float32(0)\n", above="from normlab.engine import float32\n") is None
    assert found(above="from normlab.engine import int32, load_vector\n\nimport math\nimport math\n") is None
    assert found(above='import numpy as np\n\nif __name__ == "__main__":\n    print(np.arange(3).sum())\n') is None


@pytest.mark.parametrize(
    "line",
    [
        "from normlab.engine import float32, cuda",
        "from normlab.engine import cuda, float32, int32",
        "from normlab.engine import (\n    cuda,\n    float32,\n)",
        "from normlab.engine import cuda\nfrom normlab.engine import float32",
        "from normlab.engine import cuda, float32\nfrom normlab.engine import float32, int32",
    ],
)
def test_names_may_be_imported_in_any_order_and_on_any_lines(line):
    skeleton = catalogue.skeleton("16")
    assert rules.broken(skeleton.replace("from normlab.engine import cuda, float32", line), skeleton) is None


@pytest.mark.parametrize(
    ("lines", "kind", "says"),
    [
        ("    np.sum(value)\n", "numpy", "there is no NumPy"),
        ("    np.float32(np.sum(value))\n", "numpy", "a number is float32(1), from normlab.engine"),
        ("    np.ceil(value)\n", "numpy", "there is no NumPy"),
        ("    float32(1)\n", "python", "'float32' is not imported: add `from normlab.engine import float32`"),
        ("    math.sqrt(value)\n", "python", "'math' is not imported: add `import math`"),
        ("    value.sum()\n", "numpy", "no NumPy methods"),
        ("    value[0:3]\n", "numpy", "not a slice"),
        ("    value @ value\n", "numpy", "no @"),
        ("    max(value)\n", "numpy", "compare numbers"),
        ("    [v for v in value]\n", "python", "a kernel has no list comp"),
        ("    (v := value)\n", "python", "a kernel has no ':='"),
        ("    value == 0\n", "python", "'value == 0' compares, and nothing becomes of it"),
        ("    cuda.syncthreads\n", "python", "'cuda.syncthreads' is not called: add ()"),
        ("    lambda: 1\n", "python", "a kernel has no lambda"),
        ("    try:\n        pass\n    except Exception:\n        pass\n", "python", "a kernel has no try"),
        ("    import os\n", "python", "a kernel has no import"),
        ("    open('answers')\n", "python", "'open' is nothing that a kernel knows"),
        ("    threadIdx.x\n", "python", "'threadIdx' is nothing that a kernel knows: is it cuda.threadIdx?"),
        ("    Cuda.threadIdx.x\n", "python", "'Cuda' is nothing that a kernel knows: is it cuda?"),
        ("    cuda.syncthread()\n", "python", "nothing that a kernel here needs: is it cuda.syncthreads?"),
        ("    cuda.threadidx.x\n", "python", "nothing that a kernel here needs: is it cuda.threadIdx?"),
        ("    vlaue\n", "python", "'vlaue' is nothing that a kernel knows: is it value?"),
        ("    sqrt(value)\n", "python", "is it math.sqrt, after `import math`"),
        ("    value.__class__\n", "python", "no use for 'value.__class__'"),
        ("    np.float32.mro()\n", "python", "no use for 'np.float32.mro'"),
        ("    math.pi.hex()\n", "python", "no use for 'math.pi.hex'"),
        ("    cuda.atomic.add.mro()\n", "python", "no use for 'cuda.atomic.add.mro'"),
        ("    cuda.observer = 1\n", "python", "no use for 'cuda.observer'"),
        ("    math = value\n    math.sum()\n", "numpy", "no NumPy methods"),
        ("    cuda = value\n    cuda.sum()\n", "python", "cuda.sum is nothing"),
        ("    value.shape = 3\n", "python", "no use for 'value.shape'"),
        ("    cuda.current.block\n", "python", "cuda.current is nothing that a kernel here needs"),
    ],
)
def test_what_no_gpu_can_do_is_refused_in_a_kernel(lines, kind, says):
    broken = found(lines)
    assert broken[0] == kind
    assert says in broken[1]


@pytest.mark.parametrize(
    ("above", "kind", "says"),
    [
        ("import os\n", "import", "imports os: a solution has the exercise's imports, and may add math"),
        ("from normlab.stages.warp import warp_sum as solved\n", "import", "imports normlab.stages.warp"),
        ("print('solved')\n", "outside", "stands outside of any function"),
        ("X = [1].pop()\n", "outside", "imports and constants, such as -math.inf or float32(0)"),
        ("def helper(x):\n    return x\n", "python", "needs one decorator"),
        ("@cuda.jit(debug=True)\ndef helper(x):\n    return x\n", "python", "needs one decorator"),
        ("@cuda.jit(device=True)\ndef helper(x=1):\n    return x\n", "python", "plain arguments only"),
        ("@cuda.jit(device=True)\ndef helper(x: print('hello')):\n    return x\n", "python", "plain arguments only"),
        ("@cuda.jit(device=True)\ndef helper(x: print('hello'), /):\n    return 1\n", "python", "plain arguments only"),
        ("@cuda.jit(device=True)\ndef helper(x) -> print('hello'):\n    return x\n", "python", "plain arguments only"),
        ("__name__ = '__main__'\nif __name__ == '__main__':\n    print('hello')\n", "outside", "has a meaning already"),
        ("cuda.jit = 3\n", "outside", "stands outside of any function"),
        ("import math as m\n", "import", "imports math"),
        ("from math import __spec__ as spec\n", "import", "imports math"),
        ("import numpy as math\n", "import", "imports numpy"),
        ("from normlab.engine import float32, launch\n", "import", "imports normlab.engine"),
        ("from .engine import float32\n", "import", "imports engine"),
        ("from math import sqrt\nfrom math import cbrt as sqrt\n", "outside", "has a meaning already"),
        ("from numpy import mean\n", "import", "imports numpy"),
        ("import math, os\n", "import", "imports math, os"),
        ("from normlab.engine import launch\n", "import", "imports normlab.engine"),
        ("from os import _exit as leave\n", "import", "imports os"),
        ("from math import sqrt as cuda\n", "outside", "has a meaning already"),
        ("warp_sum = 1\n", "outside", "has a meaning already"),
        ("warp_sum += 1\n", "outside", "has a meaning already"),
        ("i = cuda.threadIdx.x\n", "outside", "'i = cuda.threadIdx.x' stands outside of any function: indent it"),
        ("i = 3\nx[i] = i\n", "outside", "'x[i] = i' stands outside of any function: indent it"),
        ("total = value\n", "outside", "'total = value' stands outside of any function: indent it"),
        ("X = cuda.jit(3)\n", "outside", "stands outside"),
        ("X: print('hello') = 3\n", "outside", "stands outside"),
        ("X = float32(print('hello'))\n", "outside", "stands outside"),
        ("class A:\n    pass\n", "outside", "stands outside"),
    ],
)
def test_outside_of_functions_stand_imports_and_constants_alone(above, kind, says):
    broken = found(above=above)
    assert broken[0] == kind
    assert says in broken[1]


def test_an_import_that_is_gone_is_told_before_its_uses():
    broken = rules.broken(SKELETON.replace("from normlab.engine import cuda\n", "").replace(BODY, RIGHT), SKELETON)
    assert (broken.kind, "is gone or changed: 'from normlab.engine import cuda'" in broken.text) == ("removed", True)


def test_lines_of_the_exercise_have_to_stay():
    for skeleton in map(catalogue.skeleton, catalogue.FILES):
        code = [line for line in skeleton.splitlines() if '"""' not in line]
        *_, last = (line for line in code if "cuda.grid" in line or " = " in line or line.startswith("def "))
        changed = last.replace(" = ", " = 0 * ").replace("):", ", more):")
        broken = rules.broken(skeleton.replace(last, changed, 1), skeleton)
        assert (broken.kind, "a line of the exercise is gone" in broken.text) == ("removed", True), skeleton


def test_format_and_comments_are_free():
    changed = SKELETON.replace(BODY, RIGHT).replace("lane = cuda.threadIdx.x", "lane=cuda.threadIdx.x # mine")
    assert rules.broken(changed, SKELETON) is None


@pytest.mark.parametrize(
    "source", ["def f(:\n", "\0", "(" * 500, "x = " + "-" * 50_000 + "1", "x = " + "1+" * 20_000 + "1"]
)
def test_what_does_not_parse_is_told(source):
    assert rules.broken(source, SKELETON).kind in ("syntax", "removed")


def test_added_lines_are_counted_without_comments():
    assert given.added_lines(SKELETON.replace(BODY, "    # why\n\n" + RIGHT), SKELETON) == 3


def test_a_function_of_the_host_may_round_with_numpy():
    skeleton = catalogue.skeleton("06")

    def written(line):
        above = skeleton.replace(
            "from normlab.engine import cuda\n", "import numpy as np\n\nfrom normlab.engine import cuda\n"
        )
        return rules.broken(above.replace("    # Your line.\n", line), skeleton)

    assert written("    return int(np.ceil(n / THREADS))\n") is None
    assert written("    return int(np.fromfile(n))\n").kind == "numpy"
