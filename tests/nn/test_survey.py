"""Behind an optimizer's step the GPU is asked about all norms that it has changed, in one launch; here a fake one."""

import warnings
from functools import partial

import pytest
import torch
from nn.test_steady import COLUMNS, Changes, gradients, kept, norm_of  # noqa: F401  # kept is a fixture
from torch.utils.checkpoint import checkpoint

from normlab import keeping, nn
from normlab.nn import room, survey


@pytest.fixture
def asked(kept, monkeypatch):  # noqa: F811
    """What the GPU was asked: "forward" for each forward that did, and how many norms for each launch of a survey.

    A forward without a recording asks itself.
    """
    found = []
    asking, queue = keeping.asking, survey._Asking.__call__

    def told(*given):
        ask = asking(*given)
        return lambda: (found.append("forward"), ask())

    def counted(self, number):
        found.append(self._launch.grid[0])
        queue(self, number)

    monkeypatch.setattr(room, "asking", told)
    monkeypatch.setattr(survey._Asking, "__call__", counted)
    return found


def input_of(norm):
    return torch.randn(1, norm.weight.numel(), requires_grad=True)


def steady(*norms):
    """Norms that the GPU has found nothing to keep of, and that have been recorded."""
    for _ in range(3):
        for norm in norms:
            gradients(norm, input_of(norm))
    return norms


def parameters(*norms):
    return [parameter for norm in norms for parameter in norm.parameters()]


def without_a_recording(request):
    return "not recorded" in request.node.name


def step(*norms, change=lambda parameter: parameter.mul_(1.01)):
    Changes(*parameters(*norms)).step(change)


def test_one_launch_asks_for_all_norms_and_their_forwards_do_not(asked, kept, request):  # noqa: F811
    norms = steady(norm_of(), norm_of(), norm_of())
    for _ in range(3):
        asked.clear()
        step(*norms)
        assert asked == [3]
        for norm in norms:
            gradients(norm, input_of(norm))
        assert asked == [3, *["forward"] * 3 * without_a_recording(request)]
    assert kept == [0] * 6


@pytest.mark.parametrize("steps", [True, False])
def test_every_eighth_forward_asks_whatever_surveys_say(steps, asked, request):
    """It alone sees what comes behind the step."""
    (norm,) = steady(norm_of())
    step(norm)
    for _ in range(2):
        asked.clear()
        for _forward in range(room.QUIET):
            gradients(norm, input_of(norm))
            if steps:
                step(norm)
        if not without_a_recording(request):
            assert asked == [1] * room.QUIET * steps
        gradients(norm, input_of(norm))
        assert asked[-1:] == ["forward"] or without_a_recording(request)


def test_a_change_behind_each_step_that_nothing_shows_is_told_and_gets_its_room(kept):  # noqa: F811
    """As by a mask: the survey comes before it, and finds nothing."""
    (norm,) = steady(norm_of(nn.FusedRMSNorm))
    optimizer = Changes(norm.weight)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(room.QUIET + 4):
            optimizer.step(lambda weight: weight.clamp_(min=0.1))
            norm.weight.data[:5] = 0
            gradients(norm, input_of(norm))
    assert kept[-1] == 8
    assert 1 <= len(told) <= 3
    assert all("5 columns came to risk sooner" in str(one.message) for one in told)


def test_what_was_lost_before_a_step_is_told_behind_it(kept, late):  # noqa: F811
    (norm,) = steady(norm_of())
    step(norm, change=lambda parameter: parameter[:5].zero_())
    gradients(norm, input_of(norm))
    late.pop()()
    step(norm, change=lambda parameter: parameter.add_(1))
    for answer in late:
        answer()
    with pytest.warns(RuntimeWarning, match="5 columns came to risk sooner"):
        gradients(norm, input_of(norm))


def test_a_launch_that_fails_answers_nothing(kept, monkeypatch):  # noqa: F811
    """Neither of its own norms, nor of those asked about just before."""
    norms = steady(norm_of(), norm_of(nn.FusedRMSNorm))
    step(*norms)
    _, second = room._steady[id(norms[0].weight)].room.survey._launches

    def refuse(stream, pointers):
        raise RuntimeError("refused")

    monkeypatch.setattr(second, "_launch", refuse)
    with pytest.raises(RuntimeError, match="refused"):
        step(*norms, change=lambda parameter: parameter[:5].zero_())
    for norm in norms:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            gradients(norm, input_of(norm))
            gradients(norm, input_of(norm))
        assert kept[-1] == 8 or len(told) == 1


def test_kinds_that_differ_have_launches_of_their_own(asked):
    rms, layer = norm_of(nn.FusedRMSNorm), norm_of()
    half, other = norm_of(nn.FusedRMSNorm).bfloat16(), norm_of(nn.FusedRMSNorm)
    other.eps = 1e-6
    for norm in (rms, layer, half, other):
        for _ in range(3):
            gradients(norm, input_of(norm).to(norm.weight.dtype).detach().requires_grad_())
    asked.clear()
    step(rms, layer, half, other)
    assert asked == [1, 1, 1, 1]


def test_a_step_finds_each_norm_s_columns(asked, kept):  # noqa: F811
    """Each in its own room, and in time: in the forward right behind the step."""
    norms = steady(*(norm_of(kind) for kind in (nn.FusedLayerNorm, nn.FusedRMSNorm, nn.FusedLayerNorm)))
    kept.clear()

    def change(parameter):
        parameter.mul_(1)
        if parameter is norms[1].weight:
            parameter[:9] = 0
        if parameter is norms[2].bias:
            parameter[:20] = 1e6

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(*norms, change=change)
        for norm in norms:
            gradients(norm, input_of(norm))
    assert kept == [16, 24]


@pytest.fixture
def late(monkeypatch):
    """Surveys that are answered when the list's functions are called."""
    waiting, queue = [], survey._Asking.__call__
    monkeypatch.setattr(survey._Asking, "__call__", lambda *given: waiting.append(partial(queue, *given)))
    return waiting


def test_before_the_answer_the_forward_asks_itself(kept, late):  # noqa: F811
    """So that it is told of columns that find no room."""
    (norm,) = steady(norm_of())
    step(norm, change=lambda parameter: parameter[:5].zero_())
    gradients(norm, input_of(norm))
    assert kept == [0, 0], "nobody knew"
    late.pop()()  # adds nothing to what is told
    with pytest.warns(RuntimeWarning, match="5 columns came to risk sooner"):
        gradients(norm, input_of(norm))
    step(norm, change=lambda parameter: parameter.mul_(1))
    gradients(norm, input_of(norm))
    assert kept == [0, 0, 8]


def test_an_answer_of_the_step_before_is_none_of_this_one(kept, late):  # noqa: F811
    (norm,) = steady(norm_of())
    step(norm)
    step(norm, change=lambda parameter: parameter[:5].zero_())
    first, second = late
    late.clear()
    values = norm.weight.data.clone()
    norm.weight.data.fill_(1)
    first()
    norm.weight.data.copy_(values)
    gradients(norm, input_of(norm))  # with room for none: nobody knew
    with pytest.warns(RuntimeWarning, match="5 columns"):
        gradients(norm, input_of(norm))
    second()
    assert kept == [0, 0]


def test_an_answer_that_comes_while_the_host_looks_is_not_taken_for_the_one_before(kept, late):  # noqa: F811
    """The GPU writes the answer, then that there is one; so the host looks at the latter first."""
    (norm,) = steady(norm_of())
    known = room._steady[id(norm.weight)].room
    step(norm, change=lambda parameter: parameter[:5].zero_())

    class Meanwhile:
        """The GPU answers after the host's first look."""

        def __init__(self, numbers):
            self.numbers = numbers

        def __getitem__(self, place):
            value = self.numbers[place]
            if late:
                late.pop()()
            return value

    known.numbers = Meanwhile(known.numbers)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            gradients(norm, input_of(norm))
    assert kept == [0, 0, 8, 8, 8]
    assert not told


def test_the_second_run_of_a_checkpoint_keeps_what_the_first_one_kept(kept):  # noqa: F811
    """Though columns have come to risk between them that no counter shows, and the GPU has been asked."""
    (norm,) = steady(norm_of())
    step(norm)
    x = input_of(norm)
    output = checkpoint(norm, x, use_reentrant=False)
    norm.weight.data[:5] = 0
    room._steady[id(norm.weight)]._ask()
    with pytest.warns(RuntimeWarning, match="5 columns"):
        output.sum().backward()
    assert kept == [0, 0]


@pytest.mark.parametrize("moved", ["weight", "bias"])
def test_parameters_that_lie_elsewhere_by_now_are_not_asked_about(moved, asked):
    """The GPU would read memory that somebody else may have by now."""
    norm, other = steady(norm_of(), norm_of())
    parameter = getattr(norm, moved)
    parameter.data = parameter.data.clone()
    asked.clear()
    step(norm, other)
    assert asked == [1]


def test_a_storage_that_was_given_back_is_not_asked_about(asked):
    """As FSDP does: it is the same storage, without memory."""
    norm, other = steady(norm_of(), norm_of())
    asked.clear()

    def change(parameter):
        parameter.mul_(1)
        if parameter is norm.bias:
            parameter.untyped_storage().resize_(0)

    step(norm, other, change=change)
    assert asked == [1]


def test_norms_that_an_optimizer_has_not_all_of_are_not_asked_about(asked, request):
    """Where weight and bias have optimizers of their own, nobody knows here where the other one lies."""
    norm, other = steady(norm_of(), norm_of())
    asked.clear()
    Changes(norm.weight, *other.parameters()).step(lambda parameter: parameter.mul_(1.01))
    assert asked == [1]
    gradients(norm, input_of(norm))
    assert asked == [1, "forward"]
    gradients(other, input_of(other))
    assert asked == [1, "forward", *["forward"] * without_a_recording(request)]


def test_a_captured_step_asks_nothing(asked, monkeypatch):
    """A graph's forwards ask themselves."""
    (norm,) = steady(norm_of())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    asked.clear()
    step(norm)
    assert asked == []
    gradients(norm, input_of(norm))
    assert asked == ["forward"]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    step(norm)
    assert asked == ["forward"], "nor does a compiled one"


def test_norms_that_share_their_parameters_are_asked_about_once(asked):
    norm, other = norm_of(), norm_of()
    other.weight, other.bias = (torch.nn.Parameter(one.data) for one in (norm.weight, norm.bias))
    with torch.no_grad():
        for mine, its in zip(norm.parameters(), other.parameters(), strict=True):
            while its._version < mine._version:
                its.mul_(1)
    steady(norm, other)
    assert len(room._steady) == 2
    asked.clear()
    step(norm)
    assert asked == [1]


def test_the_table_is_made_once(asked, monkeypatch):
    norms = steady(norm_of(), norm_of())
    made, real = [], survey.Survey.__init__
    monkeypatch.setattr(survey.Survey, "__init__", lambda self, given: (made.append(given), real(self, given))[1])
    for _ in range(3):
        step(*norms)
        gradients(norms[0], input_of(norms[0]))
    assert len(made) == 1
    step(norms[1])
    step(*norms)
    assert [len(questions) for questions in made] == [2, 1], "and that of both is still there"
    step(norms[0])
    assert [len(questions) for questions in made] == [2, 1, 1], "which begins with the same norm, but is another one"


def test_norms_without_gradients_for_now_are_asked_about_with_the_others(asked):
    """Or each step would have to make another table."""
    norms = steady(norm_of(), norm_of(), norm_of())
    optimizer = Changes(*parameters(*norms))
    asked.clear()
    for left_out in (0, 1, 2, 0):
        still = [id(parameter) for parameter in norms[left_out].parameters()]
        optimizer.step(lambda parameter, still=still: None if id(parameter) in still else parameter.mul_(1.01))
    assert asked == [3, 3, 3, 3]


@pytest.mark.parametrize(("name", "value"), [("hidden", True), ("capacity", 8)])
def test_of_rooms_that_changes_may_be_hidden_from_or_that_are_not_empty_forwards_ask(name, value, asked):
    (norm,) = steady(norm_of())
    setattr(room._steady[id(norm.weight)].room, name, value)
    asked.clear()
    step(norm)
    assert asked == []


def test_another_stream_is_told_that_it_reads_the_table(kept, monkeypatch):  # noqa: F811
    (norm,) = steady(norm_of())
    step(norm)
    told = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: f"current on {index}")
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: told.append(stream))
    step(norm)
    assert told == []
    monkeypatch.setattr(survey.arrays, "stream_getter", lambda: lambda index: 9)
    step(norm)
    assert told == ["current on 0"]
