"""Twenty models of transformers, timm and torchvision, as small as they can be: what surrounds norms in practice.

ARCHITECTURES makes each as a `Model`, which takes and gives one tensor, and says what it is given. Nothing random is in
them (no dropout), so that two copies do the same in training.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

TOKENS, FEATURES, HEADS = 32, 16, 2


def import_torchvision() -> None:
    """Import torchvision; declare two operators that it looks for where its own do not load, and no norm needs them.

    That is so beside a torch without CUDA: the registry has torchvision for CUDA only.
    """
    try:
        import torchvision  # noqa: F401
    except ImportError:
        return
    except RuntimeError:  # operator torchvision::nms does not exist
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        importlib.import_module("torchvision")


import_torchvision()
transformers = pytest.importorskip("transformers", reason='needs transformers: pip install "normlab[foreign]"')
torchvision = pytest.importorskip("torchvision", reason='needs torchvision: pip install "normlab[foreign]"')
timm = pytest.importorskip("timm", reason='needs timm: pip install "normlab[foreign]"')


class Model(torch.nn.Module):
    """A model that gives a tensor: its first or last hidden state, or its scores."""

    def __init__(self, body: torch.nn.Module, **given: Any) -> None:
        super().__init__()
        self.body = body
        self.given = given

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = {name: x if value is ... else value for name, value in self.given.items()}
        output = self.body(x, **given)
        return output if isinstance(output, torch.Tensor) else output[0]

    def checkpoint(self) -> None:
        """Let the body compute its blocks again in the backward."""
        if hasattr(self.body, "gradient_checkpointing_enable"):
            self.body.gradient_checkpointing_enable({"use_reentrant": False})
        else:
            self.body.set_grad_checkpointing(True)


@dataclass(frozen=True)
class Architecture:
    """How a model is made, and an input for it; whether it can checkpoint, and be compiled as one graph."""

    make: Callable[[], Model]
    draw: Callable[[], torch.Tensor]
    checkpoints: bool = True
    one_graph: bool = True


def tokens() -> torch.Tensor:
    return torch.randint(3, TOKENS, (2, 6))


def sound() -> torch.Tensor:
    return torch.randn(2, 64)  # without a gradient: Wav2Vec2 itself asks for one


def image(size: int, batch: int = 2) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(batch, 3, size, size, requires_grad=True)


def from_config(name: str, config: dict[str, Any], given: dict[str, Any] | None = None) -> Callable[[], Model]:
    """Return what makes a model of transformers from its config's sizes; given: its forward's other arguments."""
    arguments = {"use_cache": False} if given is None else given
    kinds = [getattr(transformers, name + kind) for kind in ("Model", "Config")]
    return lambda: Model(kinds[0](kinds[1](**config)), **arguments)


def from_timm(name: str, **config: Any) -> Callable[[], Model]:
    """Return what makes a model of timm."""
    return lambda: Model(timm.create_model(name, num_classes=3, **config))


def resnet() -> Model:
    """Make a model of torchvision, whose ReLUs and sums write into what batch norms return."""
    return Model(torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=3))


# fmt: off
ENCODER = {"vocab_size": TOKENS, "hidden_size": FEATURES, "intermediate_size": FEATURES, "num_hidden_layers": 1,
           "num_attention_heads": HEADS, "max_position_embeddings": 16, "pad_token_id": 0}
DECODER = ENCODER | {"num_key_value_heads": 1, "bos_token_id": 1, "eos_token_id": 2}
LATENT = DECODER | {"num_key_value_heads": HEADS, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4,
                    "qk_nope_head_dim": 4, "v_head_dim": 8, "first_k_dense_replace": 1}
QUIET = ENCODER | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MAMBA = {"vocab_size": TOKENS, "hidden_size": FEATURES, "state_size": 4, "num_hidden_layers": 1}
GPT2 = {"vocab_size": TOKENS, "n_embd": FEATURES, "n_layer": 1, "n_head": HEADS, "n_positions": 16,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2}
MODERN = ENCODER | {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
T5 = {"vocab_size": TOKENS, "d_model": FEATURES, "d_kv": 8, "d_ff": FEATURES, "num_layers": 1, "num_heads": HEADS,
      "dropout_rate": 0.0}
BART = {"vocab_size": TOKENS, "d_model": FEATURES, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "encoder_ffn_dim": FEATURES,
        "decoder_ffn_dim": FEATURES, "max_position_embeddings": 16, "dropout": 0.0}
WAV2VEC2 = {"hidden_size": FEATURES, "num_hidden_layers": 1, "num_attention_heads": HEADS,
            "intermediate_size": FEATURES, "conv_dim": (8, 8), "conv_stride": (2, 2), "conv_kernel": (3, 3),
            "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "hidden_dropout": 0.0,
            "attention_dropout": 0.0, "activation_dropout": 0.0, "feat_proj_dropout": 0.0, "layerdrop": 0.0,
            "apply_spec_augment": False}
SWIN = {"img_size": 16, "patch_size": 2, "window_size": 2, "embed_dim": 8, "depths": (1, 1), "num_heads": (1, 2),
        "drop_path_rate": 0.0}
TWIN = {"use_cache": False, "decoder_input_ids": ...}  # an encoder and a decoder get the same tokens
# fmt: on

ARCHITECTURES = {
    "Llama": Architecture(from_config("Llama", DECODER), tokens),
    "Qwen3": Architecture(from_config("Qwen3", DECODER | {"head_dim": 8}), tokens),  # norms of queries and keys
    "Gemma2": Architecture(from_config("Gemma2", DECODER | {"head_dim": 8}), tokens),  # 1 + weight
    "Olmo": Architecture(from_config("Olmo", DECODER), tokens),  # without parameters
    "Cohere": Architecture(from_config("Cohere", DECODER), tokens),  # a LayerNorm without bias
    "DeepseekV3": Architecture(from_config("DeepseekV3", LATENT), tokens),  # norms of latent queries, keys and values
    "Mamba": Architecture(from_config("Mamba", MAMBA), tokens),
    "GPT2": Architecture(from_config("GPT2", GPT2), tokens),
    "Bert": Architecture(from_config("Bert", QUIET, {}), tokens),
    "Albert": Architecture(  # its second block is its first
        from_config("Albert", QUIET | {"num_hidden_layers": 2, "embedding_size": 8}, {}), tokens, checkpoints=False
    ),
    "ModernBert": Architecture(from_config("ModernBert", MODERN, {}), tokens),
    "T5": Architecture(from_config("T5", T5, TWIN), tokens),
    "Bart": Architecture(from_config("Bart", BART, TWIN), tokens, one_graph=False),  # layerdrop, in some versions
    "Wav2Vec2": Architecture(from_config("Wav2Vec2", WAV2VEC2, {}), sound, one_graph=False),  # a norm of channels, too
    "timm swin": Architecture(from_timm("swin_tiny_patch4_window7_224", **SWIN), image(16)),
    "timm vit": Architecture(from_timm("test_vit4", img_size=32, depth=1), image(32)),  # RmsNorm
    "timm convnext": Architecture(from_timm("test_convnext", drop_path_rate=0.0), image(32)),  # LayerNorm2d
    "timm efficientnet": Architecture(
        from_timm("test_efficientnet", drop_path_rate=0.0), image(64, 4)
    ),  # BatchNormAct2d
    "timm efficientnet_gn": Architecture(from_timm("test_efficientnet_gn", drop_path_rate=0.0), image(32)),
    "torchvision resnet": Architecture(resnet, image(64, 4), checkpoints=False),  # of 32, its last norms see two values
}
