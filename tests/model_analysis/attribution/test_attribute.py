"""``attribute`` against captum, against products by hand, and against sums in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from captum.attr import FeatureAblation, InputXGradient, IntegratedGradients
from safetensors.torch import load_file
from torch import Tensor, nn

import hookscope
from hookscope.errors import HookscopeError, InputError, RequestError
from tests.model_analysis.language_models import SMALL, beside_padding, gemma, gpt2, llama, t5

X = torch.randint(64, (2, 6), generator=torch.Generator().manual_seed(1))


def bert() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {name: value for name, value in SMALL.items() if name != "num_key_value_heads"}
    sizes["pad_token_id"] = 0
    return BertForSequenceClassification(BertConfig(**sizes, num_labels=3))


def built(make: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    return make().double().eval()


def scores(found: Any, row: int = 0) -> Tensor:
    return torch.tensor([one.score for one in found.rows[row].tokens], dtype=torch.float64)


def score_function(model: Any, target: int) -> Callable[[Tensor], Tensor]:
    """The logit of a token after the last position, or of a class, from embeddings."""

    def score(embeddings: Tensor) -> Tensor:
        logits = model(inputs_embeds=embeddings).logits
        return logits[:, -1, target] if logits.ndim == 3 else logits[:, target]

    return score


@pytest.mark.parametrize("make", [gpt2, llama, gemma, bert])
@pytest.mark.parametrize("start", ["zero", "token"])
def test_the_attributions_are_those_of_captum(make: Callable[[], Any], start: str) -> None:
    model = built(make)
    embed = model.get_input_embeddings()
    with torch.no_grad():
        x, other = embed(X), embed(torch.full_like(X, 9))
    baseline = other if start == "token" else torch.zeros_like(x)
    score = score_function(model, 2)
    mask = torch.arange(6)[None, :, None].expand(1, 6, 16)
    wanted = {
        "integrated": IntegratedGradients(score).attribute(x, baseline, n_steps=20).sum(-1),
        "gradxinput": InputXGradient(score).attribute(x.clone().requires_grad_()).sum(-1),
        "occlusion": FeatureAblation(score).attribute(x, baseline, feature_mask=mask)[:, :, 0],
    }
    for by, expected in wanted.items():
        options: dict[str, Any] = {"steps": 20} if by == "integrated" else {}
        if by != "gradxinput":
            options["baseline"] = 9 if start == "token" else "zero"
        found = hookscope.attribute(model, input={"input_ids": X}, target=2, by=by, **options)
        for row in range(2):
            torch.testing.assert_close(
                scores(found, row), expected[row].detach(), rtol=1e-6, atol=1e-8
            )


@pytest.mark.parametrize("make", [gpt2, llama, bert])
def test_integrated_gradients_add_up_in_float64(make: Callable[[], Any]) -> None:
    model = built(make)
    found = hookscope.attribute(model, input={"input_ids": X}, target=2, baseline=9, steps=60)
    score = score_function(model, 2)
    embed = model.get_input_embeddings()
    with torch.no_grad():
        change = score(embed(X)) - score(embed(torch.full_like(X, 9)))
    assert found.notes == ()
    for row, expected in zip(found.rows, change.tolist(), strict=True):
        assert row.difference == pytest.approx(expected, abs=1e-12)
        assert row.total == pytest.approx(expected, rel=1e-5)


def test_a_sum_that_misses_the_difference_has_a_note() -> None:
    found = hookscope.attribute(built(llama), input={"input_ids": X}, target=2, steps=1)
    assert len(found.notes) == 2


def hand_rollout(model: Any, row: int = -1, **call: Tensor) -> Tensor:
    """The product of the attention weights, from the model's own output of them."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = model(**call, output_attentions=True).attentions
    product = torch.eye(call["input_ids"].shape[1], dtype=torch.float64)
    for weights in attentions:
        product = (0.5 * weights[0].mean(0) + 0.5 * torch.eye(len(product))) @ product
    return product[row]


@pytest.mark.parametrize(("make", "read"), [(gpt2, -1), (llama, -1), (bert, 0)])
def test_rollout_is_the_product_of_the_attention_weights(
    make: Callable[[], Any], read: int
) -> None:
    model = built(make)
    found = hookscope.attribute(model, input={"input_ids": X[:1]}, by="rollout")
    wanted = hand_rollout(model, read, input_ids=X[:1])
    # llama computes its softmax in float32
    torch.testing.assert_close(scores(found), wanted, rtol=1e-6, atol=1e-8)
    assert found.rows[0].total == pytest.approx(1)
    assert found.rows[0].difference is None


@pytest.mark.parametrize("by", ["integrated", "gradxinput", "occlusion", "rollout"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_has_no_attribution_and_changes_none(by: str, side: str) -> None:
    model, short = built(llama), X[:1, :4]
    call = beside_padding(X[1:], short, side)
    options: dict[str, Any] = {"by": by, "target": 5}
    if by in ("integrated", "occlusion"):
        options["baseline"] = 9
    if by == "integrated":
        options["steps"] = 4
    batch = hookscope.attribute(model, input=call, **options)
    alone = hookscope.attribute(model, input={"input_ids": short}, **options)
    first = 2 if side == "left" else 0
    assert [one.position for one in batch.rows[1].tokens] == list(range(first, first + 4))
    assert batch.rows[1].position == first + 3
    torch.testing.assert_close(scores(batch, 1), scores(alone), rtol=1e-9, atol=1e-11)
    assert batch.rows[1].score == pytest.approx(alone.rows[0].score)
    whole = hookscope.attribute(model, input={"input_ids": X[1:]}, **options)
    torch.testing.assert_close(scores(batch), scores(whole), rtol=1e-9, atol=1e-11)


def test_a_difference_of_two_logits_is_the_difference_of_their_attributions() -> None:
    model = built(llama)
    ask: dict[str, Any] = {"input": {"input_ids": X}, "by": "gradxinput"}
    one, two = (scores(hookscope.attribute(model, target=token, **ask)) for token in (5, 8))
    both = hookscope.attribute(model, target=5, against=8, **ask)
    torch.testing.assert_close(scores(both), one - two)
    assert both.against is not None and both.against.index == 8


def test_the_target_is_by_default_what_the_model_predicts_at_the_position() -> None:
    model = built(llama)
    with torch.no_grad():
        logits = model(input_ids=X).logits
    found = hookscope.attribute(model, input={"input_ids": X}, by="gradxinput", position=2)
    assert [row.target.index for row in found.rows] == logits[:, 2].argmax(-1).tolist()
    assert [row.score for row in found.rows] == pytest.approx(logits[:, 2].amax(-1).tolist())
    assert not scores(found)[3:].any()  # tokens after the position


def test_an_encoder_is_explained_for_the_token_of_the_decoder() -> None:
    model = built(t5)
    call = {"input_ids": X, "decoder_input_ids": X[:, :3]}
    found = hookscope.attribute(model, input=call, target=2, by="gradxinput")
    x = model.shared(X).detach().requires_grad_()
    score = model(inputs_embeds=x, decoder_input_ids=X[:, :3]).logits[:, -1, 2]
    [gradient] = torch.autograd.grad(score.sum(), [x])
    torch.testing.assert_close(scores(found), (x * gradient).sum(-1)[0].detach())
    with pytest.raises(RequestError, match="decoder"):
        hookscope.attribute(model, input=call, by="rollout")


class Net(nn.Module):
    """A model of plain PyTorch, whose embedding is changed in place."""

    def __init__(self, mode: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head, self.mode = nn.Embedding(20, 8), nn.Linear(8, 4), mode

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words.weight[ids] if self.mode == "functional" else self.words(ids)
        x = x.detach() if self.mode == "detached" else x
        return self.head(x.mul_(2).tanh().mean(1))  # type: ignore[no-any-return]


WRONG: list[tuple[str, dict[str, Any], type[HookscopeError], str]] = [
    ("", {"target": 4}, RequestError, "target 4"),
    ("", {"target": "cat"}, RequestError, "tokenizer"),
    ("", {"target": ""}, RequestError, "''"),
    ("", {"baseline": " a"}, RequestError, "tokenizer"),
    ("", {"baseline": 20}, RequestError, "token 20"),
    ("", {"position": 0}, RequestError, "each class"),
    ("", {"by": "ig"}, RequestError, "'ig' .* integrated"),
    ("", {"by": "occlusion", "steps": 3}, RequestError, 'steps .*"integrated"'),
    ("", {"by": "rollout", "baseline": 3}, RequestError, "baseline"),
    ("", {"by": "rollout"}, RequestError, "attention weights"),
    ("functional", {}, RequestError, "Net .* token ids"),
    ("detached", {}, RequestError, "no gradient .* words"),
    ("", {"input": torch.ones(1, 3, 8, 8)}, InputError, "token ids"),
]


@pytest.mark.parametrize(("mode", "options", "error", "subject"), WRONG)
def test_a_wrong_request_is_refused(
    mode: str, options: dict[str, Any], error: type[HookscopeError], subject: str
) -> None:
    with pytest.raises(error, match=subject):
        hookscope.attribute(Net(mode), **{"input": torch.tensor([[3, 1, 4]]), **options})


def test_a_model_without_gradients_is_explained_by_occlusion() -> None:
    ids = torch.tensor([[3, 1, 4]])
    found = hookscope.attribute(Net("detached"), input=ids, by="occlusion")
    plain = hookscope.attribute(Net(), input=ids, by="occlusion")
    assert found.rows == plain.rows and scores(found).any()


def test_a_text_of_padding_alone_is_refused() -> None:
    call = {"input_ids": X, "attention_mask": torch.tensor([[1] * 6, [0] * 6])}
    with pytest.raises(InputError, match="Text 1"):
        hookscope.attribute(built(llama), input=call)


def test_the_sample_reads_the_country(repo: Path) -> None:
    folder = f"hf:{repo / 'sample_models' / 'capitals'}"
    text = "text:the capital of France is"
    found = hookscope.attribute(folder, input=text, target=" Paris", against=" Rome", baseline=".")
    best = max(found.rows[0].tokens, key=lambda one: one.score)
    assert best.token.text == " France"
    with pytest.raises(InputError, match=r"is 2 tokens: ' the' \+ ' capital'"):
        hookscope.attribute(folder, input=text, target="the capital")
    with pytest.raises(InputError, match="zebra"):
        hookscope.attribute(folder, input=text, target=" zebra")


def test_the_default_baseline_is_one_from_which_the_attributions_add_up(repo: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = f"hf:{repo / 'sample_models' / 'capitals'}"
    text = "text:the capital of Peru"
    found = hookscope.attribute(folder, input=text)
    [row] = found.rows
    [note] = found.notes
    assert found.baseline == "mean" and "mean" in note
    assert row.difference is not None and abs(row.total - row.difference) < 0.01
    table = load_file(repo / "sample_models" / "capitals" / "model.safetensors")
    mean = next(v for k, v in table.items() if k.endswith("embed_tokens.weight")).double().mean(0)
    model = AutoModelForCausalLM.from_pretrained(repo / "sample_models" / "capitals").eval()
    embeddings = mean.float().expand(1, len(row.tokens), -1)
    with torch.no_grad():
        logits = model(inputs_embeds=embeddings).logits[0, -1]
    assert row.baseline_score == pytest.approx(float(logits[row.target.index]), abs=1e-4)
    assert hookscope.attribute(folder, input=text, baseline="zero").notes  # as asked for
