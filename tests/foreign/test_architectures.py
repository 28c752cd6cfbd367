"""Models of transformers, timm and torchvision with `replace_norms`, in every mode, beside the untouched model.

What is right is the untouched model in float64; what a result may be off is what the untouched one is off in float32,
and a few roundings (`samples.close`). Norms have random parameters, and a weight of 0 in each except where the mode is
True, which small weights are wrong for.
"""

import copy
import io

import pytest
import torch
from foreign.architectures import ARCHITECTURES
from foreign.samples import MODES, close, wide

from normlab.nn import replace_norms

pytestmark = [
    pytest.mark.parametrize("mode", MODES),
    pytest.mark.parametrize("name", ARCHITECTURES),
]

STAYING = {"GroupNormAct", "BatchNormAct2d"}
"""Classes of norms that `replace_norms` leaves: those with an activation in the norm's forward."""

KINKED = {"torchvision resnet"}
"""Models that are compared in float64: a rounding's difference in float32 takes some value across a ReLU's kink."""


def fresh(name):
    """Return an untouched model."""
    model = ARCHITECTURES[name].make()
    return model.double() if name in KINKED else model


def drawn(name, mode):
    """Return an untouched model with random parameters in its norms, and an input."""
    torch.manual_seed(0)
    model = fresh(name)
    with torch.no_grad():
        for module in model.modules():
            if "Norm" in type(module).__name__:
                for parameter in module.parameters(recurse=False):
                    parameter.uniform_(0.5, 1.5)
                if mode is not True and getattr(module, "weight", None) is not None:
                    module.weight[0] = 0
    x = ARCHITECTURES[name].draw()
    return model, wide(x) if name in KINKED else x


def replaced(model, mode):
    """Return a copy with other norms."""
    model = copy.deepcopy(model)
    replace_norms(model, mode)
    return model


def results(model, x):
    """Return the output, the gradients of the parameters and the input, and the buffers afterwards."""
    model.zero_grad()
    x = x.detach().clone().requires_grad_(x.requires_grad)
    output = model(x)
    (output * torch.linspace(-1, 2, output.numel()).reshape(output.shape).to(output)).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    buffers = [buffer.clone() for buffer in model.buffers()]
    return [output.detach(), x.grad, *gradients, *buffers]


def hold(got, model, x, of=results):
    """Assert that results are those of an untouched model."""
    close(got, of(copy.deepcopy(model), x), of(copy.deepcopy(model).double(), wide(x)))


def test_a_model_has_no_norms_left_except_those_that_stay(name, mode):
    model = replaced(drawn(name, mode)[0], mode)
    marks = ("eps", "variance_epsilon", "normalized_shape")
    norms = [type(one) for one in model.modules() if any(hasattr(one, mark) for mark in marks)]
    assert norms
    left = {norm.__name__ for norm in norms if not norm.__module__.startswith("normlab.")}
    assert left <= STAYING


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_outputs_and_all_gradients_are_the_untouched_model_s(name, mode, training):
    model, x = drawn(name, mode)
    model.train(training)
    hold(results(replaced(model, mode), x), model, x)


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_three_steps_change_the_parameters_as_they_do_the_untouched_model_s(name, mode, optimizer):
    model, x = drawn(name, mode)

    def trained(one, x):
        # SGD: with ten times the rate Gemma2's steps are larger than its parameters, and the third one makes 50
        # roundings of one. AdamW: an eps of no noise's size.
        options = {"SGD": {"lr": 1e-4, "momentum": 0.9}, "AdamW": {"lr": 1e-3, "fused": True, "eps": 1e-2}}
        steps = getattr(torch.optim, optimizer)(one.parameters(), **options[optimizer])
        for _ in range(3):
            results(one, x)
            steps.step()
        return [*(parameter.detach() for parameter in one.parameters()), *one.buffers()]

    hold(trained(replaced(model, mode), x), model, x, trained)


def test_a_state_dict_goes_from_the_untouched_model_to_the_replaced_one_and_back(name, mode):
    model, x = drawn(name, mode)
    model.eval()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    mine = replaced(fresh(name).eval(), mode)
    mine.load_state_dict(torch.load(file))
    hold(results(mine, x), model, x)
    theirs = fresh(name).eval()
    theirs.load_state_dict(mine.state_dict())
    for key, value in model.state_dict().items():
        assert torch.equal(theirs.state_dict()[key], value)


def test_a_compiled_model_gives_the_untouched_model_s_gradients(name, mode):
    model, x = drawn(name, mode)
    mine = replaced(model, mode)
    compiled = torch.compile(mine, backend="aot_eager", fullgraph=ARCHITECTURES[name].one_graph)
    hold(results(compiled, x), model, x)


def test_an_exported_model_gives_the_untouched_model_s_output(name, mode):
    model, x = drawn(name, mode)
    model.eval()
    exported = torch.export.export(replaced(model, mode), (x,)).module()
    with torch.no_grad():
        hold([exported(x)], model, x, lambda one, x: [one(x)])


def test_a_checkpointed_model_gives_the_untouched_model_s_gradients(name, mode):
    if not ARCHITECTURES[name].checkpoints:
        pytest.skip("its library gives it no checkpoints")
    model, x = drawn(name, mode)

    def checkpointed(one, x):
        one.checkpoint()
        return results(one, x)

    hold(checkpointed(replaced(model, mode), x), model, x, checkpointed)  # batch statistics are updated twice in both
