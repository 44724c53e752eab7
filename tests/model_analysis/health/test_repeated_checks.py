"""The checks that compare runs: rows of a batch, runs from one seed; and masks without a key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hookscope
from hookscope.errors import RequestError
from hookscope.model_analysis.health.batch_check import rounding_limit
from hookscope.results.health import Finding, Health
from hookscope.specs.checks import CHECKS, select_checks
from tests.conftest import REPO
from tests.hooks.test_values import hooks_left
from tests.model_analysis.health.unsteady import (
    OUTSIDE,
    WIDTH,
    Experts,
    Pooled,
    around,
    attention,
    counting,
    late_layer,
    noisy_backward,
    outside,
    own_generator,
    unset_memory,
)
from tests.zoo import Module

FILE = f"{REPO}/tests/model_analysis/health/unsteady.py"
NAMED = ("batch", "determinism", "mask")


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def tokens() -> dict[str, Tensor]:
    """Three texts, of which the second has two positions of padding."""
    ids = torch.randint(5, 50, (3, 6), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(3, 6, dtype=torch.long)
    mask[1, 4:] = 0
    return {"input_ids": ids, "attention_mask": mask}


FOUR = rows(4, WIDTH)


def only(health: Health) -> Finding:
    [finding] = health.findings
    return finding


def check(model: Any, name: str, **options: Any) -> Health:
    return hookscope.check(model, only=name, **options)


def one_row_fails(self: Module, x: Tensor) -> Tensor:
    return x - x.mean(0) / int(len(x) > 1) if len(x) > 1 else x[:, :, 0]


def test_the_first_layer_whose_rows_depend_on_their_batch_is_named() -> None:
    def depends(model: nn.Module, value: Any, words: str, layer: str = "1") -> None:
        health = check(model, "batch", input=value)
        finding = only(health)
        assert (finding.level, finding.check, finding.layer) == ("warning", "batch", layer)
        assert words in f"{finding.message} {finding.hint}"
        assert not health.ok and hooks_left(model) == 0

    def of(function: Callable[[Tensor], Tensor]) -> nn.Module:
        return around(Module(lambda self, x: function(x)))

    torch.manual_seed(0)
    statistics = nn.BatchNorm1d(WIDTH, track_running_stats=False)
    depends(around(statistics), FOUR, "no running statistics")
    depends(around(nn.Softmax(0)), FOUR, "alone")
    depends(of(lambda x: x - x.mean(0)), FOUR, "in sub()")
    depends(of(lambda x: x / (len(x) - 1)), FOUR, "in div()")
    depends(of(lambda x: x * torch.arange(1, len(x) + 1)[:, None]), FOUR, "in mul()")
    ninth = of(lambda x: x * (torch.arange(len(x)) < 8)[:, None])
    depends(ninth, rows(9, WIDTH), "row 8 changes by 100% in mul() in another order")
    depends(around(Experts(1.0)), rows(4, 8, WIDTH), "capacity")
    depends(around(Module(one_row_fails)), FOUR, "copies")
    depends(Pooled("mean"), tokens(), "in mean() with longer padding", ".")
    depends(Pooled("convolution"), tokens(), "mixes real positions", "mix")


@pytest.mark.exhaustive
def test_batch_normalization_in_training_mode_is_the_first_layer_of_densenet() -> None:
    health = check("densenet121", "batch", shape=(2, 3, 32, 32), train=True)
    finding = only(health)
    assert finding.layer == "features.norm0"
    assert "statistics" in finding.hint


def test_the_change_of_a_row_is_that_of_the_layer_called_by_hand() -> None:
    torch.manual_seed(0)
    model, x = around(nn.Softmax(0)), rows(4, WIDTH)
    together = model[0](x).detach().double().softmax(0)  # of one row, all are 1
    changes = [float((row - 1).norm() / max(row.norm(), WIDTH**0.5)) for row in together]
    finding = only(check(model, "batch", input=x))
    assert finding.measured == pytest.approx(max(changes), rel=1e-5)
    assert f"row {changes.index(max(changes))} changes" in finding.message


@pytest.mark.parametrize(("share", "found"), [(1e-6, False), (1e-3, True)])
def test_rounding_is_not_a_change(share: float, found: bool) -> None:
    model = around(Module(lambda self, x: x * (1 + share * len(x))))
    assert bool(check(model, "batch", input=FOUR).findings) is found


def test_the_limit_grows_with_the_unit_of_the_dtype_and_with_the_layers_before() -> None:
    single = rounding_limit(torch.float32, 1)
    assert rounding_limit(torch.float64, 1) < single < rounding_limit(torch.bfloat16, 1) < 0.1
    assert rounding_limit(torch.float32, 100) == pytest.approx(10 * single)


@pytest.mark.parametrize("train", [True, False])
def test_advice_names_the_mode_that_was_asked_for(train: bool) -> None:
    model = around(Module(lambda self, x: F.dropout(x)))
    finding = only(check(model, "batch", input=FOUR, train=train))
    assert "in dropout()" in finding.message
    assert ("--train" in finding.hint, "training=" in finding.hint) == (train, not train)


def test_random_numbers_end_the_comparison_with_a_note() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(), nn.BatchNorm1d(WIDTH))
    before = model[2].running_mean.clone()
    health = check(model, "batch", input=FOUR, train=True)
    finding = only(health)
    assert (finding.level, finding.layer) == ("note", "1")
    assert torch.equal(model[2].running_mean, before)


def test_a_run_that_fails_is_told_and_the_others_are_compared() -> None:
    def forward(self: Any, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        if input_ids.shape[1] == 12:
            raise ValueError("this size is too much")
        return self.embed(input_ids)

    finding = only(check(Module(forward, embed=nn.Embedding(50, 4)), "batch", input=tokens()))
    assert (finding.level, finding.layer) == ("note", ".")
    assert "longer padding" in finding.message and "this size is too much" in finding.message


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda self, x: x.reshape(4, WIDTH).view(2, 2, WIDTH), "alone failed"),
        (lambda self, x: x.sum(), "first dimension"),
    ],
)
def test_a_model_that_cannot_be_compared_is_told(function: Any, words: str) -> None:
    health = check(Module(function), "batch", input=FOUR)
    assert health.checks == () and not health.findings
    assert words in health.unmade["batch"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (rows(1, WIDTH), "no second row"),
        (torch.tensor(2.0), "no second row"),
        (([rows(3, 8, 8), rows(3, 8, 8)],), "is a list"),
    ],
)
def test_an_input_without_several_rows_is_refused(value: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        check(nn.Identity(), "nan,batch", input=value)


def test_the_checks_that_run_several_times_are_made_only_by_name() -> None:
    usual = tuple(name for name in CHECKS if name not in NAMED)
    assert select_checks(None, None) == usual
    assert select_checks(None, "nan") == usual[1:]
    assert select_checks("mask,nan,batch", "nan") == ("batch", "mask")
    assert check(around(nn.ReLU()), "nan,batch", input=rows(2, WIDTH)).checks == ("nan", "batch")


@pytest.mark.parametrize(
    ("make", "layer", "words"),
    [
        (own_generator, "1", "in randn(): 64 of 64 "),
        (unset_memory, "1", "in normal_(): 16 of 16 "),
        (counting, "1", "in mul(): 64 of 64 "),
        (late_layer, "1.inner", "in run 2"),
        (noisy_backward, "0", "output.grad: 64 of 64 "),
    ],
)
def test_the_first_value_that_differs_between_runs_is_named(
    make: Callable[[], nn.Module], layer: str, words: str
) -> None:
    finding = only(check(around(make()), "determinism", input=FOUR))
    assert (finding.level, finding.layer) == ("warning", layer)
    assert words in finding.message


@pytest.mark.parametrize("check_name", ["determinism", "batch"])
@pytest.mark.parametrize("name", OUTSIDE)
def test_numbers_that_pytorch_did_not_compute_are_said_to_come_from_outside(
    name: str, check_name: str
) -> None:
    finding = only(check(around(outside(name)), check_name, input=FOUR))
    assert finding.layer == "1"
    assert f"outside PyTorch in {OUTSIDE[name][1]}()" in finding.message
    assert "--train" not in finding.hint


def test_the_largest_difference_between_runs_is_that_of_the_model() -> None:
    model, x = around(counting()), rows(4, WIDTH)
    value = model[0](x).detach()
    largest = float((2 * value - value).abs().max())  # the calls of a check begin at 1
    finding = only(check(model, "determinism", input=x))
    assert float(finding.message.rpartition(" ")[2]) == pytest.approx(largest, rel=1e-3)


def test_gradients_are_compared_unless_there_are_none() -> None:
    model, x = around(noisy_backward()), rows(4, WIDTH)
    assert not check(model, "determinism", input=x, forward_only=True).findings
    assert all(parameter.grad is None for parameter in model.parameters())
    model.requires_grad_(False)
    assert not check(model, "determinism", input=x).findings


@pytest.mark.parametrize("middle", [nn.Dropout(), nn.ReLU()])
def test_runs_from_one_seed_are_equal(middle: nn.Module) -> None:
    model = around(middle)
    assert not check(model, "determinism", input=FOUR, train=True).findings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layer", "place"), [("sets", ".", "in mul()"), ("own_weights", "1", "weight")]
)
def test_a_new_process_shows_what_one_process_cannot(name: str, layer: str, place: str) -> None:
    finding = only(check(f"{FILE}:{name}", "determinism", shape=(4, 16)))
    assert finding.layer == layer
    assert place in finding.message and "new process" in finding.message


def masked(batch: int, queries: int, keys: int) -> Tensor:
    """A mask, True where attention may look, whose last row leaves no key to queries 1 and 2."""
    mask = torch.ones(batch, queries, keys, dtype=torch.bool)
    mask[-1, 1:3] = False
    return mask


def encoder(mask: Tensor | None, padding: Tensor) -> tuple[nn.Module, Any]:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    masks = {"mask": mask, "src_key_padding_mask": padding}
    return model, ((rows(3, 5, WIDTH),), masks)


def heads(mask: Tensor) -> tuple[nn.Module, Any]:
    """A module with a mask that it passes on to one of torch's, where True means not to look."""

    def forward(self: nn.Module, x: Tensor, attn_mask: Tensor) -> Tensor:
        return self.attend(x, x, x, attn_mask=attn_mask)[0]

    attend = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
    inner = Module(forward, attend=attend)
    return Module(lambda self, x, mask: self.inner(x, attn_mask=mask), inner=inner), (
        rows(3, 5, WIDTH),
        mask,
    )


def named(name: str, mask: Tensor) -> tuple[nn.Module, Any]:
    model = Module(lambda self, x, mask: self.a(x, **{name: mask}), a=attention(name))
    return model, (rows(3, 5, WIDTH), mask)


def padded(first: int, last: int) -> Tensor:
    """Padding of the positions from one to another of row 1."""
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, first:last] = True
    return padding


CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)


def one_head() -> tuple[nn.Module, Any]:
    return heads(torch.arange(30).reshape(6, 5, 1).expand(6, 5, 5) == 5 * 5 + 2)


def additive(name: str, mask: Tensor, value: float) -> tuple[nn.Module, Any]:
    return named(name, torch.zeros(mask.shape).masked_fill(~mask, value))


def infinite() -> tuple[nn.Module, Any]:
    return additive("attn_mask", masked(1, 5, 5)[0], -torch.inf)


def test_a_row_without_a_key_is_named() -> None:
    def lacks(model_and_value: tuple[nn.Module, Any], found: Any, masks: str, place: str) -> None:
        model, value = model_and_value
        finding = check(model, "mask", input=value).findings[0]
        assert (finding.level, finding.layer, finding.measured) == found
        assert finding.message.startswith(masks) and finding.message.endswith(f"of {place}")
        assert hooks_left(model) == 0

    torch.manual_seed(0)
    attention = "layers.0.self_attn"
    whole, left = encoder(None, padded(0, 5)), encoder(CAUSAL, padded(0, 2))
    lacks(whole, ("warning", attention, 1), "key_padding_mask masks", "row 1")
    both = "attn_mask and key_padding_mask"
    lacks(left, ("note", attention, 2), both, "row 1 (queries 0-1)")
    lacks(one_head(), ("error", "inner.attend", 1), "attn_mask masks", "row 2 (query 2)")
    own = named("attn_mask", masked(3, 5, 5))
    lacks(own, ("warning", "a", 2), "attn_mask masks", "row 2 (queries 1-2)")
    added = additive("attention_mask", masked(3, 5, 5), -1e9)
    lacks(added, ("warning", "a", 2), "attention_mask masks", "row 2 (queries 1-2)")
    lacks(infinite(), ("error", "a", 2), "attn_mask masks", "every row (queries 1-2)")


@pytest.mark.parametrize("make", [one_head, infinite])
def test_nan_that_a_mask_causes_refers_to_the_mask(make: Any) -> None:
    model, value = make()
    [nan] = check(model, "mask,nan", input=value).of("nan")
    [alone] = check(model, "nan", input=value).of("nan")
    assert "mask" in nan.hint and "mask" in alone.hint and nan.hint != alone.hint


def test_nan_beside_a_mask_of_another_module_keeps_its_advice() -> None:
    root = Module(lambda self, x: (x - 100).sqrt())
    inner, (x, mask) = named("attn_mask", masked(3, 5, 5))
    model = Module(lambda self, x, mask: self.inner(x, mask) + self.root(x), inner=inner, root=root)
    health = check(model, "mask,nan", input=(x, mask))
    assert [finding.layer for finding in health.of("nan")] == ["root"]
    assert "mask" not in health.of("nan")[0].hint


def test_a_mask_with_a_key_for_each_row_is_not_a_finding() -> None:
    for model, value in (
        encoder(CAUSAL, padded(3, 5)),
        heads(CAUSAL),
        named("attn_mask", torch.eye(5, dtype=torch.bool)),
        named("attn_mask", torch.zeros(3, 5, 5)),
    ):
        health = check(model, "mask", input=value)
        assert health.checks == ("mask",) and not health.findings
    assert list(check(around(nn.ReLU()), "mask", input=rows(2, WIDTH)).unmade) == ["mask"]


def test_a_mask_of_queries_and_keys_has_no_rows_even_if_it_is_as_long_as_the_batch() -> None:
    class Causal(nn.Sequential):
        def forward(self, x: Tensor, attn_mask: Tensor) -> Tensor:
            return self[0](x, attn_mask=attn_mask)

    x = rows(5, 5, WIDTH)
    for model, value in (
        (Causal(attention("attn_mask")), ((x, ~CAUSAL), {})),
        (encoder(None, CAUSAL)[0], ((x,), {"mask": CAUSAL})),
    ):
        health = check(model, "batch", input=value)
        assert health.checks == ("batch",) and not health.findings


def test_a_sound_model_has_no_finding() -> None:
    gru = Module(lambda self, x: self.gru(x)[0], gru=nn.GRU(WIDTH, 8, batch_first=True))
    for model, value in (
        (around(nn.LayerNorm(WIDTH)), FOUR),
        (around(nn.BatchNorm1d(WIDTH)), FOUR),
        (around(Experts(None)), rows(4, 8, WIDTH)),
        (Pooled("masked mean"), tokens()),
        (Pooled("attention"), tokens()),
        encoder(None, padded(3, 5)),
        (gru, rows(4, 5, WIDTH)),
    ):
        health = check(model, ",".join(NAMED), input=value)
        assert not health.findings
        assert {"batch", "determinism"} <= set(health.checks)


VISION = (
    *("resnet18", "densenet121", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0"),
    *("shufflenet_v2_x0_5", "squeezenet1_0", "regnet_y_400mf", "convnext_tiny", "mnasnet0_5"),
)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", VISION)
def test_no_vision_model_depends_on_its_batch_in_eval_mode(name: str) -> None:
    health = check(name, "batch,determinism", shape=(3, 3, 64, 64))
    assert health.checks == ("batch", "determinism") and not health.findings


SIZES = {
    **{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50},
    **{"intermediate_size": 24, "pad_token_id": 0},
}
MODERN = SIZES | {"num_key_value_heads": 1}
LANGUAGE: dict[str, dict[str, Any]] = {
    "Bert": SIZES,
    "Roberta": SIZES | {"max_position_embeddings": 32},
    "Electra": SIZES | {"embedding_size": 16},
    "Albert": SIZES | {"embedding_size": 16},
    "DebertaV2": SIZES,
    "GPT2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 50, "n_positions": 32},
    "Llama": MODERN,
    "Mistral": MODERN,
    "Mixtral": MODERN | {"num_local_experts": 4},
    "OPT": {
        **{"hidden_size": 16, "word_embed_proj_dim": 16, "ffn_dim": 24, "num_hidden_layers": 2},
        **{"num_attention_heads": 2, "vocab_size": 50, "max_position_embeddings": 32},
    },
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
@pytest.mark.parametrize("name", LANGUAGE)
def test_no_language_model_depends_on_its_batch(name: str, dtype: str | None) -> None:
    import transformers

    config = getattr(transformers, f"{name}Config")(**LANGUAGE[name])
    model = getattr(transformers, f"{name}Model")(config).eval()
    health = check(model, ",".join(NAMED), input=tokens(), dtype=dtype)
    assert health.checks == NAMED and not health.of("batch") + health.of("determinism")
    assert health.ok  # DeBERTa's own mask leaves padding no key, which is a note
