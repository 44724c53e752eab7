"""Models, and faults to plant in a copy of one: each with the modules that may be blamed for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

_IDS = torch.randint(3, 90, (2, 10), generator=torch.Generator().manual_seed(1))
_IMAGE = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
_MASK = torch.tensor([[1] * 10, [1] * 7 + [0] * 3])
_TEXT: dict[str, Any] = {"vocab_size": 99, "hidden_size": 64, "intermediate_size": 128}
_TEXT |= {"num_hidden_layers": 3, "num_attention_heads": 4}
_LANGUAGE = _TEXT | {"num_key_value_heads": 2}
_VISION = {name: size for name, size in _TEXT.items() if name != "vocab_size"}
_VISION |= {"image_size": 32, "patch_size": 8, "projection_dim": 16}


class UNet(nn.Module):
    """Two levels, with a skip connection and a resize in ``forward``."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.middle = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.up = nn.Upsample(scale_factor=2, mode="bilinear")
        self.out = nn.Conv2d(11, 3, 3, padding=1)
        self.mode = "bilinear"
        self.skip = 1.0

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(self.middle(self.down(x)))
        small = F.interpolate(y, scale_factor=0.5, mode=self.mode)
        large = F.interpolate(small, scale_factor=2.0, mode="nearest")
        return self.out(torch.cat([large, self.skip * x], 1))  # type: ignore[no-any-return]


class Tagger(nn.Module):
    """A recurrent network that classifies a sequence by its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(99, 16)
        self.lstm = nn.LSTM(16, 16, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, 5)
        self.position = -1

    def forward(self, input_ids: Tensor) -> Tensor:
        states, _ = self.lstm(self.embed(input_ids))
        return self.head(states[:, self.position])  # type: ignore[no-any-return]


class AlwaysDropout(nn.Dropout):
    """A dropout that ``eval`` does not end."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.1, training=True)


def _vision_transformer() -> nn.Module:
    model = torchvision.models.VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=10)
    nn.init.normal_(model.heads.head.weight)
    nn.init.normal_(model.class_token)
    return model


def _transformer(name: str, config: str, **sizes: Any) -> Callable[[], nn.Module]:
    """Return what builds a model of transformers, which is not imported before."""

    def build() -> nn.Module:
        import transformers

        return getattr(transformers, name)(getattr(transformers, config)(**sizes))  # type: ignore[no-any-return]

    return build


_T5 = {"vocab_size": 99, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
_GPT2 = {"vocab_size": 99, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 32}
_CONVNEXT = {"hidden_sizes": [8, 16], "depths": [2, 2], "num_stages": 2}
_KINDS: dict[str, tuple[Callable[[], nn.Module], Tensor | dict[str, Tensor]]] = {
    "resnet": (torchvision.models.resnet18, _IMAGE),
    "densenet": (torchvision.models.densenet121, _IMAGE),
    "mobilenet": (torchvision.models.mobilenet_v3_small, _IMAGE),
    "vit": (_vision_transformer, _IMAGE),
    "unet": (UNet, _IMAGE),
    "tagger": (Tagger, {"input_ids": _IDS}),
    "llama": (_transformer("LlamaForCausalLM", "LlamaConfig", **_LANGUAGE), {"input_ids": _IDS}),
    "bert": (
        _transformer("BertModel", "BertConfig", **_TEXT),
        {"input_ids": _IDS, "attention_mask": _MASK},
    ),
    "gpt2": (_transformer("GPT2LMHeadModel", "GPT2Config", **_GPT2), {"input_ids": _IDS}),
    "t5": (
        _transformer("T5ForConditionalGeneration", "T5Config", **_T5),
        {"input_ids": _IDS, "decoder_input_ids": _IDS[:, :6]},
    ),
    "albert": (
        _transformer("AlbertModel", "AlbertConfig", **_TEXT, embedding_size=32),
        {"input_ids": _IDS},
    ),
    "mixtral": (
        _transformer("MixtralForCausalLM", "MixtralConfig", **_LANGUAGE, num_local_experts=4),
        {"input_ids": _IDS},
    ),
    "qwen": (_transformer("Qwen2ForCausalLM", "Qwen2Config", **_LANGUAGE), {"input_ids": _IDS}),
    "clip": (
        _transformer("CLIPVisionModelWithProjection", "CLIPVisionConfig", **_VISION),
        {"pixel_values": _IMAGE},
    ),
    "convnext": (
        _transformer("ConvNextModel", "ConvNextConfig", **_CONVNEXT),
        {"pixel_values": _IMAGE},
    ),
}
KINDS = tuple(_KINDS)


@cache
def _state(kind: str) -> dict[str, Tensor]:
    """Values of a model in which no weight, bias or running statistic is 0 or 1 throughout."""
    torch.manual_seed(0)
    model = _KINDS[kind][0]()
    for tensor in model.parameters():
        if tensor.dim() < 2:
            tensor.data += 0.1 * torch.randn_like(tensor)
    for name, tensor in model.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            tensor += 0.2 * torch.rand_like(tensor)
    return model.state_dict()


def build(kind: str) -> tuple[nn.Module, Any]:
    """Return a new model with the same values each time, and its input."""
    make, inputs = _KINDS[kind]
    model = make().eval()
    model.load_state_dict(_state(kind))
    return model, inputs


@dataclass(frozen=True)
class Fault:
    """A fault to plant, and the beginnings of the names of modules that may be blamed."""

    kind: str
    what: str
    plant: Callable[[nn.Module], Any]
    blamed: tuple[str, ...]


# Each of these makes a fault of a place: a module, which is to be blamed, or a dotted name in one.


def _set(kind: str, what: str, place: str, value: Any, *blamed: str) -> Fault:
    """Set an attribute, or replace a module; what holds an attribute is to be blamed."""

    def plant(model: nn.Module) -> None:
        above, _, last = place.rpartition(".")
        owner = model.get_submodule(above)
        if isinstance(owner, nn.Sequential | nn.ModuleList) and last.isdigit():
            owner[int(last)] = value
        else:
            setattr(owner, last, value)

    at_module = isinstance(value, nn.Module)
    return Fault(kind, what, plant, (place if at_module else _owner(place), *blamed))


def _owner(place: str) -> str:
    return place.rpartition(".")[0] or "."


def _data(kind: str, what: str, place: str, change: Callable[[Tensor], Tensor]) -> Fault:
    """Change the values of a parameter or a buffer."""

    def plant(model: nn.Module) -> None:
        above, _, last = place.rpartition(".")
        tensor = getattr(model.get_submodule(above), last)
        tensor.data = change(tensor.data.clone())

    return Fault(kind, what, plant, (_owner(place),))


def _wrap(kind: str, what: str, place: str, around: Callable[..., Any]) -> Fault:
    """Replace ``forward`` of a module by a function that gets the old one first."""

    def plant(model: nn.Module) -> None:
        module = model.get_submodule(place)
        old = module.forward
        module.forward = lambda *args, **kwargs: around(old, *args, **kwargs)  # type: ignore[method-assign]

    return Fault(kind, what, plant, (place,))


def _swap(kind: str, what: str, first: str, second: str) -> Fault:
    def plant(model: nn.Module) -> None:
        a, b = model.get_submodule(first), model.get_submodule(second)
        _set(kind, what, first, b).plant(model)
        _set(kind, what, second, a).plant(model)

    return Fault(kind, what, plant, (first, second))


def int4(weight: Tensor) -> Tensor:
    """Round a weight to 4 bits, with a scale for each row."""
    step = weight.abs().amax(-1, keepdim=True) / 7
    return (weight / step).round() * step


def _zero(values: Tensor) -> Tensor:
    return torch.zeros_like(values)


def _in_bfloat16(old: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    return old(*args, **kwargs).bfloat16().float()


def _without_mask(old: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    arguments = [None if isinstance(x, Tensor) and x.dim() == 4 else x for x in args]
    return old(*arguments, **{**kwargs, "attention_mask": None})


def _shifted(old: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return old(*args, **{**kwargs, "position_ids": torch.arange(1, 11)[None]})


def _without_skip(old: Callable[..., Tensor], x: Tensor) -> Tensor:
    return old(x) - 0.5 * x if x.shape == old(x).shape else old(x)


def _concatenate_backwards(model: nn.Module) -> None:
    layer: Any = model.get_submodule("features.denseblock1.denselayer3")
    layer.bn_function = lambda inputs: layer.conv1(
        layer.relu1(layer.norm1(torch.cat(inputs[::-1], 1)))
    )


def _other_heads(model: nn.Module) -> None:
    attention: Any = model.get_submodule("encoder.layers.encoder_layer_0.self_attention")
    attention.num_heads, attention.head_dim = 2, 16


def _untied(model: Any) -> None:
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.data.roll(1, 0))


_BLOCK = "encoder.layers.encoder_layer_"
_ATTENTION = "encoder.layer.{}.attention.self"
_GATE = "features.1.block.1.scale_activation"
_RELATIVE = "encoder.block.0.layer.0.SelfAttention.relative_attention_num_buckets"
_ALBERT = "encoder.albert_layer_groups.0.albert_layers.0.ffn.weight"
_CLIP = "vision_model.encoder.layers.1.mlp.activation_fn"
FAULTS = (
    _set("resnet", "epsilon", "layer2.1.bn1.eps", 1e-3),
    _data("resnet", "transposed kernel", "layer3.0.conv2.weight", lambda w: w.mT.contiguous()),
    _data("resnet", "buffer not copied", "layer1.0.bn2.running_mean", _zero),
    _set("resnet", "padding mode", "layer1.1.conv1.padding_mode", "circular"),
    _data("resnet", "int4", "fc.weight", int4),
    _wrap("resnet", "half a residual", "layer2.1", _without_skip),
    _swap("resnet", "swapped layers", "layer4.1.conv1", "layer4.1.conv2"),
    _set("resnet", "activation", "layer2.1.relu", nn.GELU()),
    _set("resnet", "pooling", "maxpool", nn.AvgPool2d(3, 2, 1)),
    _wrap("resnet", "bfloat16 sum", "layer3.1.bn2", _in_bfloat16),
    _set("densenet", "epsilon", "features.denseblock2.denselayer3.norm1.eps", 1e-3),
    _set("densenet", "pooling", "features.transition1.pool", nn.MaxPool2d(2, 2)),
    Fault(
        *("densenet", "order of a concatenation", _concatenate_backwards),
        ("features.denseblock1.denselayer3",),
    ),
    _data(
        *("densenet", "mirrored kernel", "features.denseblock3.denselayer2.conv2.weight"),
        lambda w: w.flip(-1),
    ),
    _set("mobilenet", "activation", "features.0.2", nn.SiLU()),
    _set("mobilenet", "gate", _GATE, nn.Sigmoid()),
    _set("mobilenet", "epsilon", "features.4.block.1.1.eps", 1e-5),
    _data("vit", "order of positions", "encoder.pos_embedding", lambda w: w.roll(1, 1)),
    _data("vit", "class token", "class_token", _zero),
    _set("vit", "epsilon", f"{_BLOCK}1.ln_1.eps", 1e-3),
    _set("vit", "kind of GELU", f"{_BLOCK}0.mlp.1", nn.GELU("tanh")),
    Fault("vit", "heads", _other_heads, (f"{_BLOCK}0.self_attention",)),
    _set("vit", "dropout left on", f"{_BLOCK}1.dropout", AlwaysDropout()),
    _wrap("vit", "position in the output", "encoder", lambda old, x: old(x).roll(1, 1)),
    _set("unet", "interpolation", "mode", "nearest"),
    _set("unet", "corners", "up.align_corners", True),
    _set("unet", "missing skip", "skip", 0.0),
    _set("unet", "groups", "middle.1.num_groups", 4),
    _data("tagger", "order of gates", "lstm.weight_ih_l0", lambda w: w.roll(16, 0)),
    _set("tagger", "position", "position", 0),
    _data("tagger", "embedding", "embed.weight", lambda w: w.roll(1, 0)),
    _data("llama", "base of the rotary embedding", "model.rotary_emb.inv_freq", lambda f: f**1.1),
    _set("llama", "epsilon", "model.layers.1.input_layernorm.variance_epsilon", 1e-3),
    _set("llama", "missing scale", "model.layers.1.self_attn.scaling", 1.0),
    _set("llama", "mask", "model.layers.0.self_attn.is_causal", False),
    _data(
        *("llama", "order of heads", "model.layers.2.self_attn.k_proj.weight"),
        lambda w: w.roll(16, 0),
    ),
    _set("llama", "activation", "model.layers.1.mlp.act_fn", nn.GELU()),
    _data("llama", "int4", "model.layers.0.self_attn.o_proj.weight", int4),
    _wrap("llama", "position", "model", _shifted),
    _swap("llama", "swapped layers", "model.layers.0.mlp", "model.layers.1.mlp"),
    _wrap("llama", "scale of the logits", "lm_head", lambda old, x: 1.01 * old(x)),
    _wrap("llama", "bfloat16 sum", "model.layers.1.mlp", _in_bfloat16),
    _wrap("llama", "scale of embeddings", "model.embed_tokens", lambda old, x: 8 * old(x)),
    _data("bert", "token types", "embeddings.token_type_embeddings.weight", _zero),
    _data("bert", "position", "embeddings.position_ids", lambda p: p.roll(-1, 1)),
    _set("bert", "epsilon", "embeddings.LayerNorm.eps", 1e-5),
    _set("bert", "missing scale", f"{_ATTENTION.format(1)}.scaling", 1.0),
    _set(
        *("bert", "kind of GELU", "encoder.layer.0.intermediate.intermediate_act_fn"),
        *(nn.GELU("tanh"), "encoder.layer.0.intermediate"),
    ),
    _set("bert", "missing tanh", "pooler.activation", nn.Identity()),
    _swap(
        *("bert", "query and key swapped"),
        *(f"{_ATTENTION.format(2)}.query", f"{_ATTENTION.format(2)}.key"),
    ),
    _wrap("bert", "no mask", _ATTENTION.format(1), _without_mask),
    _data(
        *("gpt2", "transposed weight", "transformer.h.1.attn.c_proj.weight"),
        lambda w: w.T.contiguous(),
    ),
    _data("gpt2", "position", "transformer.wpe.weight", lambda w: w.roll(-1, 0)),
    _wrap(
        *("gpt2", "scale by layer", "transformer.h.2.attn"),
        lambda old, x, *a, **k: old(x / 3, *a, **k),
    ),
    Fault("gpt2", "head not tied", _untied, ("lm_head",)),
    _set("t5", "buckets", _RELATIVE, 16),
    _set("t5", "epsilon", "decoder.final_layer_norm.variance_epsilon", 1e-3),
    _set("t5", "activation", "encoder.block.1.layer.1.DenseReluDense.act", nn.GELU()),
    _wrap(
        *("t5", "cross attention", "decoder.block.1.layer.1.EncDecAttention.o"),
        lambda old, x: old(x.flip(1)),
    ),
    _data("albert", "shared weight", _ALBERT, int4),
    _data("albert", "bias not copied", "encoder.embedding_hidden_mapping_in.bias", _zero),
    _data("mixtral", "experts", "model.layers.1.mlp.experts.down_proj", lambda w: w.roll(1, 0)),
    _data("mixtral", "router", "model.layers.0.mlp.gate.weight", lambda w: w.flip(0)),
    _data("qwen", "missing bias", "model.layers.1.self_attn.q_proj.bias", _zero),
    _set("clip", "activation", _CLIP, nn.GELU()),
    _data("clip", "projection", "visual_projection.weight", lambda w: w * 1.001),
    _data(
        *("convnext", "layer scale", "encoder.stages.1.layers.1.layer_scale_parameter"),
        lambda w: w * 2,
    ),
)
