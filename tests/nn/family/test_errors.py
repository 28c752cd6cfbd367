"""Mistakes are told in PyTorch's words, and nothing is changed by a call that fails."""

import pytest
import torch
from torch.func import grad, vmap
from torch.nn import functional

from normlab import nn

X, FIVE, FOUR = torch.randn(2, 5, 3), torch.ones(5), torch.ones(4)
NOTHING = None, None

SAME = {
    "one value a channel": ("batch_norm", torch.randn(1, 4, 1), *NOTHING, *NOTHING, True),
    "one value a set": ("instance_norm", torch.randn(2, 4, 1)),
    "a matrix": ("instance_norm", torch.randn(2, 4)),
    "groups that do not divide": ("group_norm", X, 2),
    "no groups": ("group_norm", X, -1),
    "too few dimensions": ("group_norm", torch.randn(5), 1),
    "a weight too short": ("group_norm", X, 5, FOUR),
    "batch norm's weight too short": ("batch_norm", X, *NOTHING, FOUR, None, True),
    "batch norm's bias too short": ("batch_norm", X, *NOTHING, FIVE, FOUR, True),
    "running_mean too short": ("batch_norm", X, FOUR, FIVE, *NOTHING, True),
    "running_var too short": ("batch_norm", X, FIVE, FOUR, *NOTHING, False),
    "no running statistics": ("batch_norm", X, *NOTHING, *NOTHING, False),
    "no running statistics for instance norm": ("instance_norm", X, *NOTHING, *NOTHING, False),
    "half of them": ("batch_norm", X, FIVE, None, *NOTHING, True),
    "eps 0 in training": ("batch_norm", X, *NOTHING, *NOTHING, True, 0.1, 0.0),
    "eps below 0 in evaluation": ("batch_norm", X, FIVE, FIVE, *NOTHING, False, 0.1, -1.0),
    "num_groups is no int": ("group_norm", X, 2.0),
    "weight is no tensor": ("group_norm", X, 5, [1]),
    "running_mean with a gradient": ("batch_norm", X, FIVE.clone().requires_grad_(), FIVE, *NOTHING, True),
    "running_var with a gradient": ("batch_norm", X, FIVE, FIVE.clone().requires_grad_(), *NOTHING, False),
    "instance norm's running_mean with one": ("instance_norm", X, FIVE.clone().requires_grad_(), FIVE),
    "integers": ("batch_norm", X.long(), *NOTHING, *NOTHING, True),
}


@pytest.mark.parametrize(("name", "arguments"), [(one, rest) for one, *rest in SAME.values()], ids=list(SAME))
def test_the_same_kind_and_the_same_words(name, arguments):
    with pytest.raises(Exception) as theirs:  # noqa: PT011  # kind and text are compared below
        getattr(functional, name)(*arguments)
    with pytest.raises(type(theirs.value)) as mine:
        getattr(nn, name)(*arguments)
    words = str(theirs.value)
    if name == "group_norm" and "more than 1 value" in words:  # torch shows a shape of its own making
        words = words.split("[")[0]
    if name == "batch_norm" and "eps must be" in words:  # what it must be, torch says in other words since 2.13
        words = words.split(" must be")[0]
    assert words in str(mine.value)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: nn.batch_norm([1.0], *NOTHING), TypeError, "batch_norm(): argument 'input' (position 1) must be Tensor, not list"),
        (lambda: nn.batch_norm(X, *NOTHING, momentum=None), TypeError, "batch_norm(): argument 'momentum' (position 7) must be float, not NoneType"),
        (lambda: nn.batch_norm(X, None, None, None, None, 0.1), TypeError, "batch_norm(): argument 'training' (position 6) must be bool, not float"),
        (lambda: nn.instance_norm(X, use_input_stats=None), TypeError, "instance_norm(): argument 'use_input_stats' (position 6) must be bool, not NoneType"),
        (lambda: nn.group_norm(X, 5, eps="small"), TypeError, "group_norm(): argument 'eps' (position 5) must be float, not str"),
        (lambda: nn.group_norm(X, 0), RuntimeError, "Expected num groups to be greater than 0, got 0"),
        (lambda: nn.batch_norm(torch.randn(4), *NOTHING), RuntimeError, "Expected at least 2 dimensions for input tensor but received 1"),
        (lambda: nn.batch_norm(X, *NOTHING, FIVE[None], None, True), RuntimeError, "Expected weight to be a vector of size equal to the number of channels in input, but got weight of shape [1, 5] and input of shape [2, 5, 3]"),
        (lambda: nn.group_norm(X, 5, FIVE, FOUR), RuntimeError, "but got bias of shape [4] and input of shape [2, 5, 3]"),  # torch shows weight's
        (lambda: nn.group_norm(X, 5, FIVE.double()), RuntimeError, "mixed dtype (CPU): expect weight to have scalar type of Float, but got Double"),
        (lambda: nn.group_norm(X, 5, FIVE.bfloat16()), RuntimeError, "mixed dtype (CPU): expect weight to have scalar type of Float, but got BFloat16"),
        (lambda: nn.group_norm(X.half(), 5, FIVE, FIVE.half()), RuntimeError, "expected scalar type Float but found Half"),
        (lambda: nn.group_norm(X, 5, FIVE.to("meta")), RuntimeError, "Expected all tensors to be on the same device, but found at least two devices, cpu and meta!"),
        (lambda: nn.instance_norm(X, None, FIVE), ValueError, "running_mean and running_var must either both be None or neither be None"),
        (lambda: nn.instance_norm(X, None, None, FOUR), RuntimeError, "weight should contain 5 elements not 4"),
    ],
)  # fmt: skip
def test_others_name_what_was_given_and_what_is_needed(call, kind, text):
    with pytest.raises(kind) as found:
        call()
    assert text in str(found.value)


def test_a_call_that_fails_leaves_running_statistics_alone():
    running = torch.zeros(5), torch.ones(5)
    with pytest.raises(RuntimeError):
        nn.batch_norm(X, *running, FOUR, None, True)
    assert not running[0].any()
    assert (running[1] == 1).all()


@pytest.mark.parametrize(
    ("norm", "shape", "text"),
    [
        (nn.BatchNorm1d(4), (2, 4, 3, 3), "expected 2D or 3D input (got 4D input)"),
        (nn.BatchNorm2d(4), (2, 4, 3), "expected 4D input (got 3D input)"),
        (nn.InstanceNorm2d(4), (2, 4), "expected 3D or 4D input (got 2D input)"),
        (nn.InstanceNorm1d(4, affine=True), (2, 3, 5), "expected input's size at dim=1 to match num_features (4), but got: 3."),
    ],
)  # fmt: skip
def test_modules_check_dimensions_as_torch_s(norm, shape, text):
    with pytest.raises(ValueError) as found:  # noqa: PT011  # the text is compared below
        norm(torch.randn(shape))
    assert str(found.value) == text


@pytest.mark.parametrize("name", ["BatchNorm1d", "InstanceNorm1d"])
def test_vmap_over_running_statistics_tells_what_torch_tells(name):
    x = torch.randn(3, 2, 4, 5)
    options = {"track_running_stats": True}
    mine, theirs = getattr(nn, name)(4, **options), getattr(torch.nn, name)(4, **options)

    def summed(norm):
        return lambda x: norm(x).square().sum()

    for transform in (vmap, lambda norm: vmap(grad(summed(norm))), lambda norm: vmap(vmap(lambda x: norm(x[None])))):
        with pytest.raises(RuntimeError) as wanted:
            transform(theirs)(x)
        with pytest.raises(RuntimeError) as found:
            transform(mine)(x)
        assert str(wanted.value).split("If you are using a prebuilt")[0] == str(found.value)
    assert not mine.running_mean.any()
    torch.testing.assert_close(vmap(mine.eval())(x), vmap(theirs.eval())(x))


def test_running_statistics_with_a_gradient_are_taken_where_none_is_asked_for():
    running = [FIVE.clone().requires_grad_() for _ in range(2)]
    with torch.no_grad():
        torch.testing.assert_close(nn.batch_norm(X, *running), functional.batch_norm(X, *running))
