"""Small models of transformers and torchvision with random weights, and inputs for them."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXT = {**SIZES, "intermediate_size": 32, "vocab_size": 64}
IMAGE = {**SIZES, "intermediate_size": 32, "image_size": 32, "patch_size": 8}
SWIN = {
    **{"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 2]},
    **{"num_heads": [1, 2], "window_size": 4},
}
LANGUAGE = {**TEXT, "num_key_value_heads": 1, "use_cache": False}
# The class of transformers without "Model" or "EncoderModel", and the arguments of its config.
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "Albert": {**TEXT, "embedding_size": 8, "num_hidden_layers": 3},
    "Bert": TEXT,
    "ConvNext": {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]},
    "DistilBert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "vocab_size": 64},
    "Electra": {**TEXT, "embedding_size": 8},
    "GPT2": {
        **{"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 64, "n_positions": 32},
        "use_cache": False,
    },
    "Llama": LANGUAGE,
    "MobileBert": {
        **{**TEXT, "hidden_size": 32, "embedding_size": 16, "intra_bottleneck_size": 16},
        "num_feedforward_networks": 2,
    },
    "MPNet": TEXT,
    "Qwen2": LANGUAGE,
    "Roberta": TEXT,
    "SqueezeBert": {
        **{**TEXT, "embedding_size": 16, "q_groups": 1, "k_groups": 1, "v_groups": 1},
        **{"post_attention_groups": 1, "intermediate_groups": 1, "output_groups": 1},
    },
    "Swin": SWIN,
    "Swinv2": SWIN,
    "T5": {
        **{"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2},
        "vocab_size": 64,
    },
    "ViT": IMAGE,
}
ENCODERS = ("T5",)
CLASSIFIERS = ("mnasnet0_5", "mobilenet_v3_small", "resnet18", "shufflenet_v2_x0_5")


class Branches(nn.Module):
    """Two calls of one module by different lines, and a chunk whose halves change places."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        once = self.mix(x)
        left, right = self.mix(once + x).chunk(2, dim=1)
        return torch.cat([right, left], dim=1)


class Recurrent(nn.Module):
    """A cell that is called for each time step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros_like(x[0])
        for step in range(3):
            state = self.cell(x[step], state)
        return self.head(state)


OWN = {"Branches": (Branches, (1, 4, 6, 6)), "Recurrent": (Recurrent, (3, 1, 4))}


def model_and_input(name: str) -> tuple[nn.Module, dict[str, Tensor] | Tensor]:
    """A model in eval mode, and its input: by name for transformers."""
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        if name in OWN:
            kind, shape = OWN[name]
            return kind().eval(), torch.randn(shape)
        if name in CLASSIFIERS:
            model = torchvision.models.get_model(name, weights=None)
            return model.eval(), torch.randn(1, 3, 64, 64)
        import transformers

        config = getattr(transformers, f"{name}Config")(**TRANSFORMERS[name])
        suffix = "EncoderModel" if name in ENCODERS else "Model"
        model = getattr(transformers, f"{name}{suffix}")(config).eval()
        if model.main_input_name == "pixel_values":
            return model, {"pixel_values": torch.randn(1, 3, 32, 32)}
        return model, {"input_ids": torch.tensor([[3, 1, 4, 1, 5]])}
