"""Rounds without a loop: as many as asked for, in order, from where one likes."""

import numpy as np

from normlab.engine import cuda, launch
from normlab.stages.unrolled import unrolled


@cuda.jit(device=True)
def note(places, factor, k):
    """Count the rounds in places[0]; note each one's k where it is due."""
    places[0] += 1
    places[int(places[0])] = factor * k


def test_the_rounds_are_made_in_order_from_the_first():
    for times in (1, 2, 5):
        rounds = unrolled(note, times)

        @cuda.jit
        def kernel(places, rounds=rounds):
            rounds(places, 10, 3)

        places = np.zeros(8, np.float32)
        launch(kernel, 1, 1, places)
        assert places.tolist() == [times, *(10 * (3 + k) for k in range(times)), *[0] * (7 - times)]
