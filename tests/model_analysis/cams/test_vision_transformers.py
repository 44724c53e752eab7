"""Vision transformers of torchvision, timm and transformers: attention rollout, default layers.

The rollouts are computed by hand from the weights of the projections, or from the attention that
transformers itself returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.vision_transformer import VisionTransformer

import hookscope
from hookscope.errors import RequestError
from hookscope.specs.cam_methods import METHODS
from hookscope.views.cam import cam_lines
from hookscope.views.text.text_table import TextOptions
from tests.model_analysis.cams.models import (
    about,
    at_layer,
    functions,
    images,
    output_of,
    resnet,
    seeded,
    swin,
    vit,
)
from tests.sources.torchscript.examples import quietly
from tests.zoo import Module

timm = pytest.importorskip("timm.models.vision_transformer", exc_type=ImportError)
transformers = pytest.importorskip("transformers", exc_type=ImportError)

SIZES: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2}
SIZES |= {"num_heads": 2, "num_classes": 5}


def of_timm(**options: Any) -> nn.Module:
    return seeded(timm.VisionTransformer(**SIZES, **options))


def of_transformers(kind: str = "ViT", attention: str = "sdpa") -> nn.Module:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 32, "image_size": 32, "patch_size": 8, "num_labels": 5}
    config = getattr(transformers, f"{kind}Config")(**sizes)
    maker = getattr(transformers, f"{kind}ForImageClassification")
    return seeded(maker._from_config(config, attn_implementation=attention))


def softmax_of(projected: Tensor, heads: int) -> Tensor:
    """The mean over heads of softmax(q k^T / sqrt(d)), for q, k and v side by side."""
    q, k, _ = projected.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    return (q @ k.transpose(2, 3) / math.sqrt(q.shape[3])).softmax(3).mean(1)


def rolled_out(weights: list[Tensor]) -> Tensor:
    product = torch.eye(weights[0].shape[1], dtype=torch.float64)
    for one in weights:
        product = (one.double() + torch.eye(one.shape[1], dtype=torch.float64)) / 2 @ product
    return product


def same(found: Tensor, wanted: Tensor) -> None:
    assert float(wanted.max()) > float(wanted.min())  # or the comparison says little
    torch.testing.assert_close(found, wanted.to(found), rtol=1e-9, atol=1e-12)


@torch.no_grad()
def test_rollout_of_torchvision_by_hand() -> None:
    model, x = vit(), images(2, 3, 32, 32)
    weights = []
    tokens = model._process_input(x)
    tokens = torch.cat([model.class_token.expand(2, -1, -1), tokens], 1)
    tokens = tokens + model.encoder.pos_embedding
    for block in model.encoder.layers:
        attention = block.self_attention
        projected = block.ln_1(tokens) @ attention.in_proj_weight.T + attention.in_proj_bias
        weights.append(softmax_of(projected, attention.num_heads))
        tokens = block(tokens)
    shot = hookscope.cam(model, by="rollout", input=x, target=1)
    same(at_layer(shot), rolled_out(weights)[:, 0, 1:].reshape(2, 4, 4))
    names = [f"encoder.layers.encoder_layer_{i}.self_attention" for i in range(2)]
    assert (about(shot)["layers"], about(shot)["tokens"]) == (names, [[0], [0]])
    assert (about(shot)["grid"], about(shot)["prefix"]) == ([4, 4], 1)


TOKENS = [
    ({}, 1, [0]),
    ({"reg_tokens": 4}, 5, [0]),
    ({"class_token": False, "global_pool": "avg"}, 0, list(range(16))),
    ({"class_token": False, "global_pool": "avg", "reg_tokens": 3}, 3, list(range(3, 19))),
]


@torch.no_grad()
@pytest.mark.parametrize(("options", "prefix", "tokens"), TOKENS)
def test_rollout_of_timm_by_hand(options: dict[str, Any], prefix: int, tokens: list[int]) -> None:
    model, x = of_timm(**options), images(2, 3, 32, 32)
    weights = []
    values = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(x))))
    for block in model.blocks:
        weights.append(softmax_of(block.attn.qkv(block.norm1(values)), 2))
        values = block(values)
    shot = hookscope.cam(model, by="rollout", input=x, target=1)
    wanted = rolled_out(weights)[:, tokens].mean(1)[:, prefix:]
    same(at_layer(shot), wanted.reshape(2, 4, 4))
    assert (about(shot)["prefix"], about(shot)["tokens"]) == (prefix, [tokens] * 2)


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    ("kind", "tokens"), [("ViT", [0]), ("Dinov2", list(range(17))), ("Beit", list(range(1, 17)))]
)
def test_rollout_of_transformers_is_that_of_the_attention_it_returns(
    kind: str, tokens: list[int], attention: str
) -> None:
    x = images(2, 3, 32, 32).float()
    weights = of_transformers(kind, "eager").float()(x, output_attentions=True).attentions
    model = of_transformers(kind, attention).float()
    shot = hookscope.cam(model, by="rollout", input={"pixel_values": x}, target=1)
    wanted = rolled_out([one.mean(1) for one in weights])[:, tokens].mean(1)[:, 1:]
    torch.testing.assert_close(
        at_layer(shot).double(), wanted.reshape(2, 4, 4), rtol=1e-4, atol=1e-6
    )
    assert about(shot)["tokens"] == [tokens] * 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("file", ["scripted.pt", "exported.pt2"])
def test_files_of_models_have_the_rollout_of_the_model(tmp_path: Path, file: str) -> None:
    model, x = vit(), images(1, 3, 32, 32)
    path = tmp_path / file
    if path.suffix == ".pt":
        with quietly():
            torch.jit.script(model).save(path)
    else:
        torch.export.save(torch.export.export(model, (x,)), path)
    wanted = hookscope.cam(model, by="rollout", input=x, target=1)
    same(
        at_layer(hookscope.cam(path, by="rollout", input=x, target=1, dtype="float64")),
        at_layer(wanted),
    )


def test_behind_a_last_layer_of_zeros_the_class_token_is_read() -> None:
    model = vit()
    nn.init.zeros_(model.heads[0].weight)
    shot = hookscope.cam(model, by="rollout", input=images(1, 3, 32, 32), target=1)
    assert about(shot)["tokens"] == [[0]]


def test_the_target_changes_the_rollout_only_through_the_tokens_that_are_read() -> None:
    x = images(1, 3, 32, 32)
    first, second = (hookscope.cam(vit(), by="rollout", input=x, target=t) for t in (1, 2))
    assert torch.equal(at_layer(first), at_layer(second))

    def halves(self: Module, x: Tensor) -> Tensor:  # class 0 is read from the first 8 tokens
        tokens = self.body.forward_features(x)
        return torch.stack([tokens[:, :8].square().sum((1, 2)), tokens[:, 8:].sum((1, 2))], 1)

    model = Module(halves, body=of_timm(class_token=False, global_pool="avg"))
    first, second = (hookscope.cam(model, by="rollout", input=x, target=t) for t in (0, 1))
    tokens = [about(first)["tokens"], about(second)["tokens"]]
    assert tokens == [[list(range(8))], [list(range(8, 16))]]
    assert not torch.allclose(at_layer(first), at_layer(second))


def test_each_image_reads_its_own_tokens() -> None:
    model, x = of_timm(class_token=False, global_pool="max"), images(3, 3, 32, 32)
    value, scores = output_of(model, model.blocks[1].attn, x)
    [gradient] = torch.autograd.grad(scores[:, 1].sum(), value)
    wanted = [sorted(set(rows.nonzero()[:, 0].tolist())) for rows in gradient]
    shot = hookscope.cam(model, by="rollout", input=x, target=1)
    assert about(shot)["tokens"] == wanted and wanted[0] != wanted[1]
    assert any("differ by image" in line.plain for line in cam_lines(shot, TextOptions(200)))


def test_a_class_token_behind_the_patches_is_refused() -> None:
    def class_token_last(self: Module, x: Tensor) -> Tensor:
        body = self.body
        tokens = body._pos_embed(body.patch_embed(x)).roll(-1, 1)
        return body.head(body.norm(body.blocks(tokens))[:, -1])

    model = Module(class_token_last, body=of_timm(global_pool="token"))
    with pytest.raises(RequestError, match="16 of 17"):
        hookscope.cam(model, by="rollout", input=images(2, 3, 32, 32), target=1)


@pytest.mark.parametrize(
    ("make", "choices", "message"),
    [
        (resnet, {}, "attention weights"),
        (swin, {}, r"features.1.0.attn .* windows"),
        (
            lambda: of_timm(class_token=False, global_pool="map"),
            {},
            "different tokens",
        ),
        (vit, {"layer": "encoder.ln"}, "no layer"),
    ],
)
def test_what_has_no_rollout_is_refused(
    make: Callable[[], nn.Module], choices: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        hookscope.cam(make(), by="rollout", input=images(1, 3, 32, 32), target=1, **choices)


def test_weights_that_are_not_known_are_told_with_the_reason() -> None:
    model = vit()
    for block in model.encoder.layers:
        block.self_attention.dropout = 0.5
    with pytest.raises(RequestError, match=r"dropout 0\.5"):
        hookscope.cam(model, by="rollout", input=images(1, 3, 32, 32), target=1, train=True)


# The default layer of the other methods


DEFAULTS: list[tuple[Callable[[], nn.Module], str]] = [
    (of_timm, "blocks.1.norm1"),
    (lambda: of_timm(qk_norm=True), "blocks.1.norm1"),
    (lambda: of_timm(reg_tokens=4), "blocks.1.norm1"),
    (lambda: of_timm(class_token=False, global_pool="avg"), "norm"),
    (of_transformers, "vit.layers.1.layernorm_before"),
    (lambda: of_transformers(attention="eager"), "vit.layers.1.layernorm_before"),
]


@pytest.mark.parametrize(("make", "layer"), DEFAULTS)
def test_the_layer_is_what_comes_into_the_last_attention(
    make: Callable[[], nn.Module], layer: str
) -> None:
    model, x = make(), images(1, 3, 32, 32)
    value, output = output_of(model, model.get_submodule(layer), x)
    scores = output if isinstance(output, Tensor) else output.logits
    found, wanted = [], []
    for target in range(5):
        gradient = torch.autograd.grad(scores[0, target], value, retain_graph=True)[0]
        for by, factor in (("hirescam", gradient), ("layercam", gradient.relu())):
            shot = hookscope.cam(model, by=by, input=x, target=target)
            assert about(shot)["layer"] == layer
            found.append(at_layer(shot))
            products = (factor * value)[:, about(shot)["prefix"] :].sum(2)
            wanted.append(products.relu().detach().reshape(1, 4, 4))
    same(torch.cat(found), torch.cat(wanted))


def test_the_output_of_attention_is_taken_and_not_its_weights() -> None:
    name = "vit.layers.1.attention"
    x = images(1, 3, 32, 32)
    found = [
        at_layer(hookscope.cam(of_transformers(attention=a), input=x, target=1, layer=name))
        for a in ("sdpa", "eager")
    ]
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


def test_a_model_that_is_all_attention_has_a_layer_too() -> None:
    attention = Module(
        lambda self, x: self.mix(self.patches(x).flatten(2).mT).relu().mean(1),
        patches=nn.Conv2d(3, 8, 8, stride=8),
        mix=nn.Linear(8, 8),
    )
    model = seeded(nn.Sequential(attention, nn.Linear(8, 4)))
    found = about(hookscope.cam(model, input=images(1, 3, 32, 32), target=1))
    assert found["layer"] == "0.mix"


# Images of one batch


class MaximumOverTokens(VisionTransformer):
    """Each image reads other tokens: those with the largest value of a channel. Has a ReLU."""

    def __init__(self) -> None:
        super().__init__(32, 8, 2, 2, 16, 32, num_classes=5)
        for block in self.encoder.layers:
            block.mlp[1] = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        tokens = self._process_input(x)
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), tokens], 1)
        return self.heads(self.encoder(tokens).amax(1))


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        (method, kind)
        for method in METHODS
        for kind in (functions, MaximumOverTokens, vit)
        if (method, kind) not in (("rollout", functions), ("guided", vit))  # no attention, no ReLU
    ],
)
def test_the_map_of_an_image_does_not_depend_on_the_batch(method: str, kind: Any) -> None:
    model, x, targets = seeded(kind()), images(3, 3, 32, 32), [3, 0, 1]
    if kind is MaximumOverTokens:
        nn.init.ones_(model.encoder.ln.bias)  # or the map of scorecam is zero everywhere
    x[1] = x[1] * 4 - 2
    choices = {"integrated": {"steps": 3}, "occlusion": {"patch": 12}}.get(method, {})
    batch = hookscope.cam(model, input=x, target=targets, by=method, **choices)
    maps, metadata = batch["./cam"], batch.metadata["cam"]
    assert not torch.allclose(maps[0], maps[1])
    for n, target in enumerate(targets):
        alone = hookscope.cam(model, input=x[n : n + 1], target=target, by=method, **choices)
        torch.testing.assert_close(maps[n : n + 1], alone["./cam"], rtol=1e-9, atol=1e-12)
        entry = alone.metadata["cam"]
        assert metadata["images"][n]["peak"] == entry["images"][0]["peak"]
        assert metadata.get("tokens", [None] * 3)[n] == entry.get("tokens", [None])[0]
