"""Decoder layers as transformers and others write them, without transformers, for tests of `fuse_residual`."""

import torch
from torch import nn

from normlab.nn import add_rms_norm


class LlamaRMSNorm(nn.Module):
    """As transformers writes it: rounded, and then multiplied by the weight."""

    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.promote_types(dtype, torch.float32))
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(dtype)


class GemmaRMSNorm(nn.Module):
    """As transformers writes it: multiplied by 1 + weight in float32, and then rounded."""

    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(size))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        wide = torch.promote_types(x.dtype, torch.float32)
        output = self._norm(x.to(wide)) * (1.0 + self.weight.to(wide))
        return output.type_as(x)


class Attention(nn.Module):
    """Something between the tokens; returns weights, too, which are None."""

    def __init__(self, size):
        super().__init__()
        self.projection = nn.Linear(size, size)

    def forward(self, hidden_states, attention_mask=None, **anything):
        return torch.tanh(self.projection(hidden_states)).cumsum(1) / 4, None


class GatedMLP(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up, self.down = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)

    def forward(self, x):
        return self.down(nn.functional.silu(self.up(x)))


class LlamaLayer(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.self_attn, self.mlp = Attention(size), GatedMLP(size)
        self.input_layernorm, self.post_attention_layernorm = LlamaRMSNorm(size), LlamaRMSNorm(size)

    def forward(self, hidden_states: torch.Tensor, attention_mask=None, **options) -> torch.Tensor:
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states, _ = self.self_attn(hidden_states=hidden_states, attention_mask=attention_mask, **options)
        hidden_states = residual + hidden_states

        # Fully Connected
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = residual + hidden_states
        return hidden_states


class PreLayerNormLayer(nn.Module):
    """Layer norms with biases, a dropout, and sums in another order."""

    def __init__(self, size):
        super().__init__()
        self.attn, self.mlp, self.drop = Attention(size), GatedMLP(size), nn.Dropout(0.0)
        self.ln_1, self.ln_2 = nn.LayerNorm(size), nn.LayerNorm(size)

    def forward(self, x):
        residual = x
        x = self.ln_1(x)
        outputs = self.attn(x)
        attended = outputs[0]
        x = self.drop(attended) + residual
        residual = x
        x = self.ln_2(x)
        return residual + self.mlp(x)


class GemmaLayer(LlamaLayer):
    """With Gemma 2's norms after attention and MLP, before the additions."""

    def __init__(self, size):
        nn.Module.__init__(self)
        self.self_attn, self.mlp = Attention(size), GatedMLP(size)
        self.input_layernorm, self.post_attention_layernorm = GemmaRMSNorm(size), GemmaRMSNorm(size)
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm = GemmaRMSNorm(size), GemmaRMSNorm(size)

    def forward(self, hidden_states, attention_mask=None):
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states, _ = self.self_attn(hidden_states)
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = residual + hidden_states

        residual = hidden_states
        hidden_states = self.pre_feedforward_layernorm(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = self.post_feedforward_layernorm(hidden_states)
        hidden_states = residual + hidden_states
        return hidden_states


class MixtureLayer(nn.Module):
    """The addition and the norm stand in a branch, and the sum is used by its own name."""

    def __init__(self, size):
        super().__init__()
        self.self_attn, self.mlp = Attention(size), GatedMLP(size)
        self.post_attention_layernorm = LlamaRMSNorm(size)

    def forward(self, hidden_states, attention_mask=None):
        attended, _ = self.self_attn(hidden_states)
        if attention_mask is None:
            total = hidden_states + attended
            routed = self.post_attention_layernorm(total)
        else:
            raise NotImplementedError
        return total + self.mlp(routed)


class WritingIntoTheResidual(LlamaLayer):
    def forward(self, hidden_states):
        hidden_states = hidden_states * 1
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        residual *= 2
        return residual + self.post_attention_layernorm(hidden_states)


class AddingAParameter(LlamaLayer):
    """The addition before the norm is that of a row to all rows."""

    def __init__(self, size):
        super().__init__(size)
        self.position = nn.Parameter(torch.zeros(size))

    def forward(self, hidden_states):
        hidden_states = hidden_states + self.position
        hidden_states = self.input_layernorm(hidden_states)
        return hidden_states + self.post_attention_layernorm(self.mlp(hidden_states))


class WithACallOfItsOwn(LlamaLayer):
    """Its last addition and a norm without a weight are one call already."""

    def forward(self, hidden_states):
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states, _ = self.self_attn(hidden_states)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        output, total = add_rms_norm(self.mlp(hidden_states), residual)
        return output + total


class PostNormLayer(LlamaLayer):
    """As OLMo 2: norms before the additions."""

    def forward(self, hidden_states):
        residual = hidden_states
        hidden_states, _ = self.self_attn(hidden_states)
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.mlp(hidden_states)
        hidden_states = self.input_layernorm(hidden_states)
        return residual + hidden_states


class Mixer(nn.Module):
    """Returns a tensor, or a tuple of a tensor and `extra` times None."""

    def __init__(self, size, extra=0):
        super().__init__()
        self.linear, self.extra = nn.Linear(size, size), extra

    def forward(self, x):
        return (self.linear(x), *[None] * self.extra) if self.extra else self.linear(x)


class ManyModulesLayer(nn.Module):
    """Its attention and its MLP are not modules of their own; two modules that add to one sum return tuples."""

    def __init__(self, size):
        super().__init__()
        self.ln_1, self.ln_2 = nn.RMSNorm(size), nn.RMSNorm(size)
        self.q, self.k, self.v, self.gate, self.down = (Mixer(size) for _ in range(5))
        self.o, self.other, self.up = Mixer(size, 1), Mixer(size, 1), Mixer(size, 2)

    def forward(self, x):
        residual = x
        x = self.ln_1(x)
        x = residual + self.o(torch.sigmoid(self.q(x) * self.k(x)) * self.v(x))[0] + self.other(x)[0]
        residual = x
        x = self.ln_2(x)
        up, _, _ = self.up(x)
        return residual + self.down(torch.sigmoid(self.gate(x)) * up)


class LoopLayer(ManyModulesLayer):
    def forward(self, x):
        for mixer in (self.q, self.k, self.v):
            x = x + mixer(x)
            normalised = self.ln_1(x)
            x = x + torch.sigmoid(normalised)
        return x


class PrivateNameLayer(ManyModulesLayer):
    twice = 2
    Number = int

    def __init__(self, size):
        super().__init__(size)
        self.__factor = 0.5

    def forward(self, x, times: Number = twice, *, less=twice):
        """Has a name that Python mangles, names of the class's body, and text in column 0:
        text
        """
        residual = x
        x = self.ln_1(x)
        return residual + self.q(x) * self.__factor * times / less


class RefusingSubclasses(LlamaLayer):
    def __init_subclass__(cls, **options):
        raise ValueError("final")
