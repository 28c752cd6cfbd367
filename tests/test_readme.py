"""The README's programs run, and say what it says they say."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS, ids=["use it", "a kernel of your own"])
def test_the_readme_s_programs_run(program, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(program)
    names = runpy.run_path(str(file))
    if "recomputed" in names:
        for one, other in zip(
            names["recomputed"], (names["grad_input"], names["grad_weight"], names["grad_bias"]), strict=True
        ):
            np.testing.assert_allclose(one, other, atol=1e-4)
    else:
        np.testing.assert_allclose(names["variance"], names["x"].var(axis=1, dtype=np.float64), rtol=1e-3)
