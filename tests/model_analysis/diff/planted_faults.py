"""Models, and faults to plant in a copy of one: each with the modules that may be blamed for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torchvision
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

_IDS = torch.randint(3, 90, (2, 10), generator=torch.Generator().manual_seed(1))
_IMAGE = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
_MASK = torch.tensor([[1] * 10, [1] * 7 + [0] * 3])
_SIZES: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}


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


_KINDS: dict[str, tuple[Callable[[], nn.Module], dict[str, Tensor]]] = {
    "resnet": (torchvision.models.resnet18, {"x": _IMAGE}),
    "densenet": (torchvision.models.densenet121, {"x": _IMAGE}),
    "mobilenet": (torchvision.models.mobilenet_v3_small, {"x": _IMAGE}),
    "vit": (_vision_transformer, {"x": _IMAGE}),
    "unet": (UNet, {"x": _IMAGE}),
    "tagger": (Tagger, {"input_ids": _IDS}),
    "llama": (
        lambda: transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**_SIZES, num_key_value_heads=2)
        ),
        {"input_ids": _IDS},
    ),
    "bert": (
        lambda: transformers.BertModel(transformers.BertConfig(**_SIZES)),
        {"input_ids": _IDS, "attention_mask": _MASK},
    ),
    "gpt2": (
        lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=99, n_embd=64, n_layer=3, n_head=4, n_positions=32)
        ),
        {"input_ids": _IDS},
    ),
    "t5": (
        lambda: transformers.T5ForConditionalGeneration(
            transformers.T5Config(
                vocab_size=99, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4
            )
        ),
        {"input_ids": _IDS, "decoder_input_ids": _IDS[:, :6]},
    ),
    "albert": (
        lambda: transformers.AlbertModel(transformers.AlbertConfig(**_SIZES, embedding_size=32)),
        {"input_ids": _IDS},
    ),
    "mixtral": (
        lambda: transformers.MixtralForCausalLM(
            transformers.MixtralConfig(**_SIZES, num_key_value_heads=2, num_local_experts=4)
        ),
        {"input_ids": _IDS},
    ),
    "qwen": (
        lambda: transformers.Qwen2ForCausalLM(
            transformers.Qwen2Config(**_SIZES, num_key_value_heads=2)
        ),
        {"input_ids": _IDS},
    ),
    "clip": (
        lambda: transformers.CLIPVisionModelWithProjection(
            transformers.CLIPVisionConfig(
                **{k: v for k, v in _SIZES.items() if k != "vocab_size"},
                image_size=32,
                patch_size=8,
                projection_dim=16,
            )
        ),
        {"pixel_values": _IMAGE},
    ),
    "convnext": (
        lambda: transformers.ConvNextModel(
            transformers.ConvNextConfig(hidden_sizes=[8, 16], depths=[2, 2], num_stages=2)
        ),
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


def build(kind: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return a new model with the same values each time, and its input."""
    make, inputs = _KINDS[kind]
    model = make().eval()
    model.load_state_dict(_state(kind))
    if kind in ("resnet", "densenet", "mobilenet", "vit", "unet"):
        return model, inputs["x"]  # type: ignore[return-value]
    return model, inputs


@dataclass(frozen=True)
class Fault:
    """A fault to plant, and the beginnings of the names of modules that may be blamed."""

    kind: str
    what: str
    plant: Callable[[nn.Module], Any]
    blamed: tuple[str, ...]


def _set(name: str, value: Any) -> Callable[[nn.Module], None]:
    """Set an attribute, or an entry of a container, under a dotted name."""

    def plant(model: nn.Module) -> None:
        *above, last = name.split(".")
        owner = model.get_submodule(".".join(above))
        if isinstance(owner, nn.Sequential | nn.ModuleList) and last.isdigit():
            owner[int(last)] = value
        else:
            setattr(owner, last, value)

    return plant


def _data(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[nn.Module], None]:
    """Change the values of a parameter or a buffer."""

    def plant(model: nn.Module) -> None:
        *above, last = name.split(".")
        tensor = getattr(model.get_submodule(".".join(above)), last)
        tensor.data = change(tensor.data.clone())

    return plant


def _wrap(name: str, around: Callable[..., Any]) -> Callable[[nn.Module], None]:
    """Replace ``forward`` of a module by a function that gets the old one first."""

    def plant(model: nn.Module) -> None:
        module = model.get_submodule(name)
        old = module.forward
        module.forward = lambda *args, **kwargs: around(old, *args, **kwargs)  # type: ignore[method-assign]

    return plant


def _swap(first: str, second: str) -> Callable[[nn.Module], None]:
    def plant(model: nn.Module) -> None:
        a, b = model.get_submodule(first), model.get_submodule(second)
        _set(first, b)(model)
        _set(second, a)(model)

    return plant


def _int4(weight: Tensor) -> Tensor:
    step = weight.abs().amax(-1, keepdim=True) / 7
    return (weight / step).round() * step


def _circular(model: nn.Module) -> None:
    conv: Any = model.get_submodule("layer1.1.conv1")
    conv.padding_mode = "circular"


def _in_bfloat16(old: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    return old(*args, **kwargs).bfloat16().float()


def _without_mask(old: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    arguments = [None if isinstance(x, Tensor) and x.dim() == 4 else x for x in args]
    return old(*arguments, **{**kwargs, "attention_mask": None})


def _shifted(old: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return old(*args, **{**kwargs, "position_ids": torch.arange(1, 11)[None]})


def _without_skip(old: Callable[..., Tensor], x: Tensor) -> Tensor:
    return old(x) - 0.5 * x if x.shape == old(x).shape else old(x)


FAULTS = (
    Fault("resnet", "epsilon", _set("layer2.1.bn1.eps", 1e-3), ("layer2.1.bn1",)),
    Fault(
        "resnet",
        "transposed kernel",
        _data("layer3.0.conv2.weight", lambda w: w.mT.contiguous()),
        ("layer3.0.conv2",),
    ),
    Fault(
        "resnet",
        "buffer not copied",
        _data("layer1.0.bn2.running_mean", Tensor.zero_),
        ("layer1.0.bn2",),
    ),
    Fault("resnet", "padding mode", _circular, ("layer1.1.conv1",)),
    Fault("resnet", "int4", _data("fc.weight", _int4), ("fc",)),
    Fault("resnet", "half a residual", _wrap("layer2.1", _without_skip), ("layer2.1",)),
    Fault(
        "resnet", "swapped layers", _swap("layer4.1.conv1", "layer4.1.conv2"), ("layer4.1.conv",)
    ),
    Fault("resnet", "activation", _set("layer2.1.relu", nn.GELU()), ("layer2.1.relu",)),
    Fault("resnet", "pooling", _set("maxpool", nn.AvgPool2d(3, 2, 1)), ("maxpool",)),
    Fault("resnet", "bfloat16 sum", _wrap("layer3.1.bn2", _in_bfloat16), ("layer3.1.bn2",)),
    Fault(
        "densenet",
        "epsilon",
        _set("features.denseblock2.denselayer3.norm1.eps", 1e-3),
        ("features.denseblock2.denselayer3.norm1",),
    ),
    Fault(
        "densenet",
        "pooling",
        _set("features.transition1.pool", nn.MaxPool2d(2, 2)),
        ("features.transition1.pool",),
    ),
    Fault(
        "densenet",
        "order of a concatenation",
        lambda model: setattr(
            model.features.denseblock1.denselayer3,
            "bn_function",
            lambda inputs: model.features.denseblock1.denselayer3.conv1(
                model.features.denseblock1.denselayer3.relu1(
                    model.features.denseblock1.denselayer3.norm1(torch.cat(inputs[::-1], 1))
                )
            ),
        ),
        ("features.denseblock1.denselayer3",),
    ),
    Fault(
        "densenet",
        "mirrored kernel",
        _data("features.denseblock3.denselayer2.conv2.weight", lambda w: w.flip(-1)),
        ("features.denseblock3.denselayer2.conv2",),
    ),
    Fault("mobilenet", "activation", _set("features.0.2", nn.SiLU()), ("features.0.2",)),
    Fault(
        "mobilenet",
        "gate",
        _set("features.1.block.1.scale_activation", nn.Sigmoid()),
        ("features.1.block.1.scale_activation",),
    ),
    Fault(
        "mobilenet", "epsilon", _set("features.4.block.1.1.eps", 1e-5), ("features.4.block.1.1",)
    ),
    Fault(
        "vit",
        "order of positions",
        _data("encoder.pos_embedding", lambda w: w.roll(1, 1)),
        ("encoder",),
    ),
    Fault("vit", "class token", _data("class_token", Tensor.zero_), (".",)),
    Fault(
        "vit",
        "epsilon",
        _set("encoder.layers.encoder_layer_1.ln_1.eps", 1e-3),
        ("encoder.layers.encoder_layer_1.ln_1",),
    ),
    Fault(
        "vit",
        "kind of GELU",
        _set("encoder.layers.encoder_layer_0.mlp.1", nn.GELU("tanh")),
        ("encoder.layers.encoder_layer_0.mlp.1",),
    ),
    Fault(
        "vit",
        "heads",
        lambda m: (
            _set("encoder.layers.encoder_layer_0.self_attention.num_heads", 2)(m),
            _set("encoder.layers.encoder_layer_0.self_attention.head_dim", 16)(m),
        ),
        ("encoder.layers.encoder_layer_0.self_attention",),
    ),
    Fault(
        "vit",
        "dropout left on",
        _set("encoder.layers.encoder_layer_1.dropout", AlwaysDropout()),
        ("encoder.layers.encoder_layer_1.dropout",),
    ),
    Fault(
        "vit",
        "position in the output",
        _wrap("encoder", lambda old, x: old(x).roll(1, 1)),
        ("encoder",),
    ),
    Fault("unet", "interpolation", _set("mode", "nearest"), (".",)),
    Fault("unet", "corners", _set("up.align_corners", True), ("up",)),
    Fault("unet", "missing skip", _set("skip", 0.0), (".",)),
    Fault("unet", "groups", _set("middle.1.num_groups", 4), ("middle.1",)),
    Fault(
        "tagger", "order of gates", _data("lstm.weight_ih_l0", lambda w: w.roll(16, 0)), ("lstm",)
    ),
    Fault("tagger", "position", _set("position", 0), (".",)),
    Fault("tagger", "embedding", _data("embed.weight", lambda w: w.roll(1, 0)), ("embed",)),
    Fault(
        "llama",
        "base of the rotary embedding",
        _data("model.rotary_emb.inv_freq", lambda f: f**1.1),
        ("model.rotary_emb",),
    ),
    Fault(
        "llama",
        "epsilon",
        _set("model.layers.1.input_layernorm.variance_epsilon", 1e-3),
        ("model.layers.1.input_layernorm",),
    ),
    Fault(
        "llama",
        "missing scale",
        _set("model.layers.1.self_attn.scaling", 1.0),
        ("model.layers.1.self_attn",),
    ),
    Fault(
        "llama",
        "mask",
        _set("model.layers.0.self_attn.is_causal", False),
        ("model.layers.0.self_attn",),
    ),
    Fault(
        "llama",
        "order of heads",
        _data("model.layers.2.self_attn.k_proj.weight", lambda w: w.roll(16, 0)),
        ("model.layers.2.self_attn.k_proj",),
    ),
    Fault(
        "llama",
        "activation",
        _set("model.layers.1.mlp.act_fn", nn.GELU()),
        ("model.layers.1.mlp.act_fn",),
    ),
    Fault(
        "llama",
        "int4",
        _data("model.layers.0.self_attn.o_proj.weight", _int4),
        ("model.layers.0.self_attn.o_proj",),
    ),
    Fault("llama", "position", _wrap("model", _shifted), ("model",)),
    Fault(
        "llama",
        "swapped layers",
        _swap("model.layers.0.mlp", "model.layers.1.mlp"),
        ("model.layers.0.mlp", "model.layers.1.mlp"),
    ),
    Fault(
        "llama", "scale of the logits", _wrap("lm_head", lambda old, x: 1.01 * old(x)), ("lm_head",)
    ),
    Fault(
        "llama", "bfloat16 sum", _wrap("model.layers.1.mlp", _in_bfloat16), ("model.layers.1.mlp",)
    ),
    Fault(
        "llama",
        "scale of embeddings",
        _wrap("model.embed_tokens", lambda old, x: 8 * old(x)),
        ("model.embed_tokens",),
    ),
    Fault(
        "bert",
        "token types",
        _data("embeddings.token_type_embeddings.weight", Tensor.zero_),
        ("embeddings.token_type_embeddings",),
    ),
    Fault(
        "bert",
        "position",
        _data("embeddings.position_ids", lambda p: p.roll(-1, 1)),
        ("embeddings",),
    ),
    Fault("bert", "epsilon", _set("embeddings.LayerNorm.eps", 1e-5), ("embeddings.LayerNorm",)),
    Fault(
        "bert",
        "missing scale",
        _set("encoder.layer.1.attention.self.scaling", 1.0),
        ("encoder.layer.1.attention.self",),
    ),
    Fault(
        "bert",
        "kind of GELU",
        _set("encoder.layer.0.intermediate.intermediate_act_fn", nn.GELU("tanh")),
        ("encoder.layer.0.intermediate.intermediate_act_fn", "encoder.layer.0.intermediate"),
    ),
    Fault("bert", "missing tanh", _set("pooler.activation", nn.Identity()), ("pooler.activation",)),
    Fault(
        "bert",
        "query and key swapped",
        _swap("encoder.layer.2.attention.self.query", "encoder.layer.2.attention.self.key"),
        ("encoder.layer.2.attention.self.query", "encoder.layer.2.attention.self.key"),
    ),
    Fault(
        "bert",
        "no mask",
        _wrap("encoder.layer.1.attention.self", _without_mask),
        ("encoder.layer.1.attention.self",),
    ),
    Fault(
        "gpt2",
        "transposed weight",
        _data("transformer.h.1.attn.c_proj.weight", lambda w: w.T.contiguous()),
        ("transformer.h.1.attn.c_proj",),
    ),
    Fault(
        "gpt2",
        "position",
        _data("transformer.wpe.weight", lambda w: w.roll(-1, 0)),
        ("transformer.wpe",),
    ),
    Fault(
        "gpt2",
        "scale by layer",
        _wrap("transformer.h.2.attn", lambda old, x, *a, **k: old(x / 3, *a, **k)),
        ("transformer.h.2.attn",),
    ),
    Fault(
        "gpt2",
        "head not tied",
        lambda m: setattr(m.lm_head, "weight", nn.Parameter(m.lm_head.weight.data.roll(1, 0))),
        ("lm_head",),
    ),
    Fault(
        "t5",
        "buckets",
        _set("encoder.block.0.layer.0.SelfAttention.relative_attention_num_buckets", 16),
        ("encoder.block.0.layer.0.SelfAttention",),
    ),
    Fault(
        "t5",
        "epsilon",
        _set("decoder.final_layer_norm.variance_epsilon", 1e-3),
        ("decoder.final_layer_norm",),
    ),
    Fault(
        "t5",
        "activation",
        _set("encoder.block.1.layer.1.DenseReluDense.act", nn.GELU()),
        ("encoder.block.1.layer.1.DenseReluDense.act",),
    ),
    Fault(
        "t5",
        "cross attention",
        _wrap("decoder.block.1.layer.1.EncDecAttention.o", lambda old, x: old(x.flip(1))),
        ("decoder.block.1.layer.1.EncDecAttention.o",),
    ),
    Fault(
        "albert",
        "shared weight",
        _data("encoder.albert_layer_groups.0.albert_layers.0.ffn.weight", _int4),
        ("encoder.albert_layer_groups.0.albert_layers.0.ffn",),
    ),
    Fault(
        "albert",
        "bias not copied",
        _data("encoder.embedding_hidden_mapping_in.bias", Tensor.zero_),
        ("encoder.embedding_hidden_mapping_in",),
    ),
    Fault(
        "mixtral",
        "experts",
        _data("model.layers.1.mlp.experts.down_proj", lambda w: w.roll(1, 0)),
        ("model.layers.1.mlp.experts",),
    ),
    Fault(
        "mixtral",
        "router",
        _data("model.layers.0.mlp.gate.weight", lambda w: w.flip(0)),
        ("model.layers.0.mlp.gate",),
    ),
    Fault(
        "qwen",
        "missing bias",
        _data("model.layers.1.self_attn.q_proj.bias", Tensor.zero_),
        ("model.layers.1.self_attn.q_proj",),
    ),
    Fault(
        "clip",
        "activation",
        _set("vision_model.encoder.layers.1.mlp.activation_fn", nn.GELU()),
        ("vision_model.encoder.layers.1.mlp.activation_fn",),
    ),
    Fault(
        "clip",
        "projection",
        _data("visual_projection.weight", lambda w: w * 1.001),
        ("visual_projection",),
    ),
    Fault(
        "convnext",
        "layer scale",
        _data("encoder.stages.1.layers.1.layer_scale_parameter", lambda w: w * 2),
        ("encoder.stages.1.layers.1",),
    ),
)
