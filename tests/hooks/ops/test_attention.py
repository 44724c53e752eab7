"""``attention``: the weights are those worked out by hand, or they are not given at all."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

import hookscope
from hookscope.errors import CheckFailed
from hookscope.hooks.capture import Capture
from tests.conftest import REPO
from tests.oracle.by_hand import same_bits
from tests.sources.torchscript.examples import quietly
from tests.zoo import Module

SAMPLES = REPO / "sample_models"


def weights_of(shot: Capture) -> dict[str, Tensor]:
    found = {r.key: shot[r.key] for r in shot.records if r.kind == "attention"}
    assert list(found) == [entry["key"] for entry in shot.metadata["attention"]]
    return found


def attended(run: Callable[..., Tensor], *inputs: Tensor, **options: Any) -> Capture:
    """The attention of a module that does what a function of its inputs does."""
    model = Module(lambda self, *inputs: run(*inputs))
    return hookscope.capture(model, input=inputs, attention=True, **options)


def hidden_in(shot: Capture) -> list[tuple[str, str, str]]:
    return [(x.module, x.what, x.reason) for x in shot.absent if x.kind == "attention"]


def test_a_vision_transformer_has_the_weights_of_its_own_multihead_attention() -> None:
    torch.manual_seed(0)
    vit = torchvision.models.VisionTransformer(32, 8, 2, 2, 16, 32).eval()
    x = torch.randn(2, 3, 32, 32)
    shot = hookscope.capture(vit, input=x, attention=True, what="input")
    names = [f"encoder.layers.encoder_layer_{n}.self_attention" for n in range(2)]
    assert list(weights_of(shot)) == [f"{name}/attention" for name in names]
    for name, entry in zip(names, shot.metadata["attention"], strict=True):
        given = shot[f"{name}/input.0"]
        own = vit.get_submodule(name)
        with torch.no_grad():
            _, expected = own(given, given, given, average_attn_weights=False)
        assert expected.shape == (2, 2, 17, 17)
        assert same_bits(shot[f"{name}/attention"], expected)
        assert 0 <= entry["difference"] <= entry["tolerance"] == 1e-4


SCALED: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.3},
    "bool mask": {"attn_mask": torch.rand(5, 7, generator=torch.Generator().manual_seed(1)) > 0.4},
    "added mask": {"attn_mask": torch.linspace(-3, 2, 35, dtype=torch.float64).reshape(5, 7)},
    "blind row": {"attn_mask": torch.arange(5)[:, None].expand(5, 7) != 2},
    "gqa": {"enable_gqa": True},
}


def scaled_by_hand(q: Tensor, k: Tensor, given: dict[str, Any]) -> Tensor:
    """Entry by entry in Python's own numbers."""
    n, heads, length, width = q.shape
    served = heads // k.shape[1]
    scale = given.get("scale") or 1 / math.sqrt(width)
    mask = given.get("attn_mask")
    weights = torch.zeros(n, heads, length, k.shape[2], dtype=torch.float64)
    for b, h, i in torch.cartesian_prod(*map(torch.arange, (n, heads, length))).tolist():
        shares = []
        for j in range(k.shape[2]):
            dot = math.fsum((q[b, h, i] * k[b, h // served, j]).tolist())
            share = math.exp(dot * scale)
            if mask is not None and mask.dtype is torch.bool:
                share *= bool(mask[i, j])
            elif mask is not None:
                share *= math.exp(mask[i, j])
            shares.append(0.0 if given.get("is_causal") and j > i else share)
        total = math.fsum(shares)
        weights[b, h, i] = torch.tensor([s / (total or 1) for s in shares], dtype=torch.float64)
    return weights


@pytest.mark.parametrize("name", SCALED)
def test_scaled_dot_product_attention_by_hand(name: str) -> None:
    given = SCALED[name]
    torch.manual_seed(0)
    q = torch.randn(2, 4, 5, 3, dtype=torch.float64)
    k = torch.randn(2, 2 if name == "gqa" else 4, 7, 3, dtype=torch.float64)

    def run(q: Tensor, k: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, k, **given)

    shot = attended(run, q, k)
    [(key, weights)] = weights_of(shot).items()
    assert key == "./attention"
    assert torch.allclose(weights, scaled_by_hand(q, k, given), rtol=1e-12, atol=1e-14)
    [entry] = shot.metadata["attention"]
    assert entry["from"] == "scaled_dot_product_attention"
    assert entry["difference"] <= entry["tolerance"] == 1e-11
    assert not hidden_in(shot)


class Attending(nn.Module):
    """Causal attention by the kernel, twice in one call."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(6, 18)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            q, k, v = self.mix(x).chunk(3, dim=-1)
            x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x


def test_the_forms_of_one_model_have_the_same_weights(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Attending().eval(), torch.randn(2, 5, 6)
    with quietly():
        torch.jit.script(model).save(str(tmp_path / "scripted.pt"))
        torch.jit.trace(model, x).save(str(tmp_path / "traced.pt"))
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "exported.pt2")
    expected = weights_of(hookscope.capture(model, input=x, attention=True))
    assert list(expected) == ["./attention", "./attention:2"]
    assert all(torch.equal(w.tril(), w) and w.shape == (2, 5, 5) for w in expected.values())
    for form in ("scripted.pt", "traced.pt", "exported.pt2"):
        found = weights_of(
            hookscope.capture(tmp_path / form, input=x, attention=True, trust=form.endswith("2"))
        )
        assert list(found) == list(expected)
        assert all(same_bits(found[key], expected[key]) for key in expected)


def by_matmul(weights: Tensor, v: Tensor) -> Tensor:
    return weights @ v


def by_einsum(weights: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhqk,bhkd->bqhd", weights, v)


def by_bmm(weights: Tensor, v: Tensor) -> Tensor:
    return torch.bmm(weights.reshape(-1, 5, 5), v.reshape(-1, 5, 3))


def by_half(weights: Tensor, v: Tensor) -> Tensor:
    return weights.contiguous().to(torch.bfloat16).view(2, 4, 5, 5) @ v.bfloat16()


@pytest.mark.parametrize("product", [by_matmul, by_einsum, by_bmm, by_half])
@pytest.mark.parametrize("softmax", [nn.Softmax(dim=-1), lambda scores: scores.softmax(-1)])
@pytest.mark.parametrize("train", [False, True])
def test_attention_in_the_open(
    product: Callable[[Tensor, Tensor], Tensor], softmax: Callable[[Tensor], Tensor], train: bool
) -> None:
    def run(self: nn.Module, q: Tensor, v: Tensor) -> Tensor:
        return product(self.dropout(softmax(q @ q.mT)), v)

    torch.manual_seed(0)
    q, v = torch.randn(2, 4, 5, 3), torch.randn(2, 4, 5, 3)
    parts = {"softmax": softmax} if isinstance(softmax, nn.Module) else {}
    inner = Module(run, dropout=nn.Dropout(0.5), **parts)
    model = Module(lambda self, q, v: self.open(q, v), open=inner)
    shot = hookscope.capture(model, input=(q, v), attention=True, train=train, verify=True)
    assert list(weights_of(shot)) == ["open/attention"]
    assert same_bits(shot["open/attention"], (q @ q.mT).softmax(-1))  # before the dropout
    [entry] = shot.metadata["attention"]
    assert entry.keys() == {"key", "from"} and "softmax" in entry["from"]


def test_windows_of_a_swin_by_hand() -> None:
    torch.manual_seed(0)
    swin = torchvision.models.SwinTransformer([4, 4], 16, [2], [2], [4, 4]).eval()
    shot = hookscope.capture(swin, input=torch.randn(1, 3, 32, 32), attention=True, what="input")
    own = swin.features[1][0].attn
    x = shot["features.1.0.attn/input.0"]
    windows = x.view(1, 2, 4, 2, 4, 16).permute(0, 1, 3, 2, 4, 5).reshape(4, 16, 16)
    q, k, _ = own.qkv(windows).view(4, 16, 3, 2, 8).permute(2, 0, 3, 1, 4)
    scores = q * 8**-0.5 @ k.mT + own.get_relative_position_bias()
    weights = shot["features.1.0.attn/attention"]
    assert weights.shape == (4, 2, 16, 16)
    assert torch.allclose(weights, scores.softmax(-1).detach(), rtol=1e-5, atol=1e-7)


def test_a_softmax_that_weighs_nothing_is_no_attention() -> None:
    def run(x: Tensor) -> Tensor:
        down = x.softmax(0) @ x  # not over the last dimension
        after = x @ x.softmax(1)  # not the first factor
        return (down + after).softmax(1)

    shot = attended(run, torch.randn(3, 3))
    assert shot.metadata["attention"] == []
    assert hidden_in(shot) == []


def test_dropout_inside_a_kernel_leaves_nothing_to_recompute() -> None:
    def run(x: Tensor) -> Tensor:
        first = F.scaled_dot_product_attention(x, x, x, dropout_p=0.25)
        return F.dropout(first) + torch.randn(4, 4)

    x = torch.randn(2, 4, 4)
    shot = attended(run, x, verify=True)
    [(module, what, reason)] = hidden_in(shot)
    assert (module, what, weights_of(shot)) == (".", "attention", {})
    assert "scaled_dot_product_attention with dropout 0.25" in reason
    mha = nn.MultiheadAttention(4, 2, dropout=0.5)
    shot = hookscope.capture(mha, input=(x, x, x), attention=True, train=True, verify=True)
    assert "multi_head_attention_forward with dropout 0.5" in hidden_in(shot)[0][2]


def test_weights_whose_output_is_another_are_not_given() -> None:
    @torch.library.custom_op("hookscope_tests::scaled_dot_product_attention", mutates_args=())
    def unscaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return (query @ key.mT).softmax(-1) @ value  # a kernel of that name with another formula

    shot = attended(lambda x: unscaled(x, x, x), torch.randn(2, 4, 4))
    [(_, what, reason)] = hidden_in(shot)
    assert what == "attention" and "./attention" not in shot
    assert re.search(r"scaled_dot_product_attention.* by 0\.\d", reason)


def test_a_kernel_that_cannot_be_recomputed_does_not_end_the_run() -> None:
    @torch.library.custom_op("hookscope_tests::multi_head_attention_forward", mutates_args=())
    def other(x: Tensor) -> Tensor:
        return x * 2

    shot = attended(lambda x: other(x), torch.randn(2, 4))
    [(_, _, reason)] = hidden_in(shot)
    assert "missing a required argument" in reason


def test_nan_from_a_mask_is_no_disagreement() -> None:
    mask = torch.zeros(4, 4)
    mask[1, 2] = math.nan
    shot = attended(
        lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=mask), torch.randn(2, 4, 4)
    )
    assert shot["./attention"].isnan().any(-1).tolist() == [[False, True, False, False]] * 2


@pytest.mark.parametrize("change", [lambda a: a.mul_(0.5), lambda a: a.masked_fill_(a < 0.1, 0)])
def test_weights_that_are_changed_in_place_are_told_and_not_kept(change: Any) -> None:
    def run(x: Tensor) -> Tensor:
        weights = (x @ x.mT).softmax(-1)
        change(weights)
        return weights @ x

    shot = attended(run, torch.randn(2, 4, 4))
    [(_, _, reason)] = hidden_in(shot)
    assert "in place" in reason and "./attention" not in shot


def test_key_and_value_of_different_numbers_of_heads() -> None:
    q, k, v = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8), torch.randn(1, 1, 3, 8)
    shot = attended(lambda q: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), q)
    expected = (q @ k.repeat_interleave(2, 1).mT / 8**0.5).softmax(-1)
    torch.testing.assert_close(shot["./attention"], expected)


def test_inside_torch_func_attention_is_told_and_not_kept() -> None:
    def run(x: Tensor) -> Tensor:
        seen = torch.vmap(lambda y: (y @ y.mT).softmax(-1) @ y)(x)
        return seen + torch.vmap(lambda y: F.scaled_dot_product_attention(y, y, y))(x)

    shot = attended(run, torch.randn(2, 3, 3))
    assert weights_of(shot) == {}
    [(_, what, reason)] = hidden_in(shot)
    assert what == "attention" and "torch.func" in reason


def test_recomputing_draws_no_random_number() -> None:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        x, _ = self.attend(x, x, x, need_weights=False)
        return F.dropout(F.scaled_dot_product_attention(x, x, x)) + torch.rand(())

    torch.manual_seed(0)
    model = Module(run, attend=nn.MultiheadAttention(8, 2, batch_first=True))
    x = torch.randn(2, 3, 8)
    shot = hookscope.capture(model, input=x, attention=True, train=True)
    assert list(weights_of(shot)) == ["attend/attention", "./attention"]
    bare = hookscope.capture(model, input=x, train=True, layers=".")
    assert same_bits(shot.output, bare.output)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_floating_type_has_its_tolerance(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Attending().to(dtype)
    shot = hookscope.capture(model, input=torch.randn(2, 64, 6, dtype=dtype), attention=True)
    assert [weights.dtype for weights in weights_of(shot).values()] == [dtype] * 2
    assert not hidden_in(shot)


def test_autocast_gives_the_kernel_other_inputs() -> None:
    def run(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.scaled_dot_product_attention(x, x, x)

    x = torch.randn(2, 9, 4)
    shot = attended(run, x)
    low = x.bfloat16().float()
    expected = (low @ low.mT / 2).softmax(-1).bfloat16()
    assert same_bits(shot["./attention"], expected)


def test_multihead_attention_scripted_takes_another_kernel(tmp_path: Path) -> None:
    torch.manual_seed(0)
    mha, x = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(2, 5, 8)
    with quietly():
        scripted = torch.jit.script(mha)
    shot = hookscope.capture(scripted, input=(x, x, x), attention=True)
    [entry] = shot.metadata["attention"]
    assert entry["from"] == "_native_multi_head_attention"
    with torch.no_grad():
        _, expected = mha(x, x, x, average_attn_weights=False)
    assert torch.allclose(shot["./attention"], expected, rtol=1e-5, atol=1e-7)


def test_what_a_kernel_hides_altogether_is_told() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with quietly():
        scripted = torch.jit.script(layer)
    shot = hookscope.capture(scripted, input=torch.randn(2, 5, 8), attention=True)
    [(module, what, reason)] = hidden_in(shot)
    assert (module, what) == (".", "attention") and "_transformer_encoder_layer_fwd" in reason


@pytest.mark.slow  # it imports the compiler
def test_flex_attention_runs_and_is_told() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    model = Module(lambda self, x: flex_attention(x, x, x))
    with quietly():
        shot = hookscope.capture(
            model, input=torch.randn(1, 2, 16, 16), attention=True, verify=True
        )
    [(module, what, reason)] = hidden_in(shot)
    assert (module, what) == (".", "attention") and "flex_attention" in reason


def test_without_the_fast_path_the_output_is_still_checked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "hookscope")
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 5, 8)
    shot = hookscope.capture(model, input=x, attention=True, verify=True)
    assert list(weights_of(shot)) == [f"layers.{n}.self_attn/attention" for n in range(2)]
    assert torch.backends.mha.get_fastpath_enabled()
    with torch.no_grad():
        fast = model(x)
    gap = f"{float((shot.output.double() - fast.double()).abs().max()):.2g}"
    notes = [record.message for record in caplog.records if "fast path" in record.message]
    assert len(notes) == (gap != "0")
    assert all(note.endswith(f" by {gap}") for note in notes)


def test_a_model_that_notices_is_refused() -> None:
    model = Module(lambda self, x: x + torch.overrides._len_torch_function_stack())
    with pytest.raises(CheckFailed, match="different"):
        hookscope.capture(model, input=torch.ones(1), attention=True)


def test_attention_of_the_chosen_layers_alone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Attending(), Attending())
    shot = hookscope.capture(model, input=torch.randn(2, 5, 6), attention=True, layers="1")
    assert list(weights_of(shot)) == ["1/attention", "1/attention:2"]
