"""The picture of the index sets shows the sets that the oracle has."""

import subprocess
import sys

import numpy as np
import pytest

from normlab.host import index_sets
from normlab.host.family import plot_index_sets
from normlab.oracle import family

SHAPE = (index_sets.N, index_sets.C, index_sets.L)
SETS = {
    "Batch norm": family.batch_sets(SHAPE),
    "Layer norm": family.layer_sets(SHAPE, 2),
    "Instance norm": family.instance_sets(SHAPE),
    "Group norm": family.group_sets(SHAPE, index_sets.GROUPS),
}


@pytest.mark.parametrize("norm", index_sets.NORMS, ids=lambda norm: norm[0])
def test_the_sets_in_the_picture_are_those_of_the_norm(norm):
    name, _, _, set_of = norm
    n, c, _ = np.indices(SHAPE)
    numbers = set_of(n, c)
    sets = SETS[name]
    rows = np.concatenate([sets.rows(numbers, s) for s in range(sets.sets)])
    assert (rows == rows[:, :1]).all()
    assert len(set(rows[:, 0].tolist())) == len(rows) == sets.batches * sets.sets


def test_every_panel_colours_two_sets():
    from matplotlib.colors import to_rgb

    axes = plot_index_sets().axes
    for panel, name in zip(axes, SETS, strict=True):
        assert name in [text.get_text() for text in panel.texts]
    for panel, sets in zip(axes, SETS.values(), strict=True):
        colors = [patch.get_facecolor()[:3] for patch in panel.patches]
        for color in (index_sets.FIRST, index_sets.SECOND):
            assert colors.count(to_rgb(color)) == sets.values  # the front face of each element


def test_the_family_imports_no_matplotlib():
    code = "import normlab, sys; normlab.family.batch_norm; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
