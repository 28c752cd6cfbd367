"""Of all combinations of parameters, those that tests take leave none of the values out, and no two."""

from itertools import combinations, product

import draws
from draws import paired, sampled


def meetings(combined):
    """Return all pairs of values that meet, with the lists that they are of."""
    return {pair for one in combined for pair in combinations(enumerate(one), 2)}


def test_any_two_values_meet_where_a_combination_with_both_is_possible(monkeypatch):
    monkeypatch.setattr(draws, "ALL", False)
    lists = "abc", [True, False], [1, 2, 3, 4]
    every = [one for one in product(*lists) if one[::2] != ("a", 1)]
    chosen = paired(*lists, possible=lambda letter, _, number: (letter, number) != ("a", 1))
    assert meetings(chosen) == meetings(every)
    assert set(chosen) < set(every)
    assert len(chosen) <= 12


def test_each_value_is_sampled(monkeypatch):
    monkeypatch.setattr(draws, "ALL", False)
    assert sampled("abc", [1, 2]) == [("a", 1), ("b", 2), ("c", 1)]
    monkeypatch.setattr(draws, "ALL", True)
    assert sampled("abc", [1, 2]) == paired("abc", [1, 2]) == [*product("abc", [1, 2])]
