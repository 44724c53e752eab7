"""An ablation is a hook written by hand, and its figures are those of plain PyTorch, exactly."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hookscope
from hookscope.errors import CheckFailed, LayerError, LossError, RequestError
from hookscope.results.ablation import LayerAblation, rank_ablations
from tests.conftest import REPO
from tests.digits_forms import FORMS
from tests.hooks.edits.by_hand import channels, drawn, replaced
from tests.oracle.by_hand import same_bits
from tests.zoo import Module, Picky, no_tensor

SAMPLES = REPO / "sample_models"
WORDS = FORMS
LAYERS = {"conv1": 16, "relu1": 16, "conv2": 32, "relu2": 32, "pool": 32, "fc": 10}
X = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(5))


def images(word: str) -> Tensor:
    """A batch of three, or the one image that the exported program was made for."""
    return X[:1] if word.endswith("pt2") else X


def digits() -> nn.Module:
    return hookscope.load_model(f"{SAMPLES}/digits.py:trained").module


def outputs_by_hand(
    model: nn.Module, x: Tensor, hooks: dict[tuple[str, int | None], Any]
) -> dict[tuple[str, int | None], Tensor]:
    found = {}
    for (layer, channel), hook in hooks.items():
        handle = model.get_submodule(layer).register_forward_hook(hook)
        with torch.no_grad():
            found[layer, channel] = model(x)
        handle.remove()
    return found


def figures_by_hand(clean: Tensor, after: Tensor, classes: Tensor) -> dict[str, Any]:
    rows = torch.arange(len(clean))
    score = [float(y[rows, classes].double().mean()) for y in (clean, after)]
    gap = (after.double() - clean.double()).norm() / clean.double().norm()
    return {
        "score": score[1] - score[0],
        "output": float(gap),
        "flipped": int((after.argmax(1) != clean.argmax(1)).sum()),
    }


def noise(layer: str) -> Callable[[Tensor], Tensor]:
    def add(x: Tensor) -> Tensor:
        return x + x.std(correction=0) * drawn(torch.randn, x.shape, 0, f"{layer}/output")

    return add


def assert_same_figures(ablation: Any, expected: dict[str, Any]) -> None:
    found = {name: getattr(ablation, name) for name in expected}
    relative = found.pop("output"), expected.pop("output")  # a quotient of two sums in float64
    assert relative[0] == pytest.approx(relative[1], rel=1e-14)
    assert found == expected


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("by", ["zero", "noise"])
def test_every_layer_ablated_is_the_hook_written_by_hand(word: str, by: str) -> None:
    x = images(word)
    found = hookscope.ablate(f"{SAMPLES}/{word}", input=x, by=by)
    edits = {name: torch.zeros_like if by == "zero" else noise(name) for name in LAYERS}
    model = digits()
    after = outputs_by_hand(model, x, {(n, None): replaced(edits[n]) for n in LAYERS})
    clean = model(x).detach()
    assert {k.place for k in found.ablations} == set(after)
    for ablation in found.ablations:
        expected = figures_by_hand(clean, after[ablation.place], clean.argmax(1))
        assert_same_figures(ablation, expected)
        loss = F.cross_entropy(after[ablation.place], clean.argmax(1))
        before = F.cross_entropy(clean, clean.argmax(1))
        assert ablation.loss == pytest.approx(float(loss) - float(before), abs=1e-6)


def test_every_channel_ablated_is_the_hook_written_by_hand() -> None:
    model = digits()
    hooks = {
        (name, n): channels([n], torch.zeros_like)
        for name, size in LAYERS.items()
        for n in range(size)
    }
    after = outputs_by_hand(model, X, hooks)
    clean = model(X).detach()
    found = hookscope.ablate(model, input=X, channels=True, target=[1, 2, 3])
    assert found.total == len(found.ablations) == sum(LAYERS.values())
    for ablation in found.ablations:
        expected = figures_by_hand(clean, after[ablation.place], torch.tensor([1, 2, 3]))
        assert_same_figures(ablation, expected)
    assert same_bits(model(X), clean)


@pytest.mark.parametrize("channel", [False, True])
def test_mean_is_that_of_each_channel_over_batch_and_positions(channel: bool) -> None:
    found = hookscope.ablate(digits(), input=X, layers=["conv1", "fc"], by="mean", channels=channel)
    model = digits()
    clean = model(X).detach()
    dims = {"conv1": (0, 2, 3), "fc": (0,)}
    assert len(found.ablations) == (26 if channel else 2)
    for ablation in found.ablations:

        def mean(x: Tensor, over: tuple[int, ...] = dims[ablation.layer]) -> Tensor:
            return x.mean(over, keepdim=True).expand_as(x)

        hook = replaced(mean) if ablation.channel is None else channels([ablation.channel], mean)
        after = outputs_by_hand(model, X, {ablation.place: hook})[ablation.place]
        expected = figures_by_hand(clean, after, clean.argmax(1))
        assert_same_figures(ablation, expected)


def test_what_has_one_value_a_channel_is_left_out_of_mean_and_noise_with_its_reason() -> None:
    for by, reason in (("mean", "mean"), ("noise", "standard deviation")):
        found = hookscope.ablate(digits(), input=X[:1], by=by, channels=True)
        [left] = found.left_out
        assert left.layer == "fc" and reason in left.reason
        assert found.total == len(found.ablations) == 128


def test_an_ablation_does_what_its_edit_does() -> None:
    word = f"{SAMPLES}/digits_scripted.pt"
    found = hookscope.ablate(word, input=X, by="noise", channels=True, layers="conv2")
    for ablation in found.ablations[:3]:
        shot = hookscope.capture(word, input=X, layers="fc", edits=ablation.edit(found.edit))
        assert shot.metadata["effect"]["output"][0]["relative"] == ablation.output


@pytest.mark.parametrize("rank", ["score", "loss", "output"])
def test_the_largest_change_comes_first_and_ties_keep_the_order_of_the_run(rank: str) -> None:
    found = hookscope.ablate(digits(), input=X, rank=rank)
    sizes = [abs(getattr(ablation, rank)) for ablation in found.ablations]
    assert sizes == sorted(sizes, reverse=True)
    order = [ablation.layer for ablation in found.ablations]
    # Zero at a ReLU is zero before it.
    assert order.index("relu1") == order.index("conv1") + 1
    assert order.index("pool") == order.index("relu2") + 1 == order.index("conv2") + 2


def test_nan_is_ranked_before_everything_and_nothing_last() -> None:
    values = [None, 1.0, math.nan, -math.inf, -2.0, 0.0]
    made = [LayerAblation(str(n), "ReLU", None, loss=value) for n, value in enumerate(values)]
    assert "".join(ablation.layer for ablation in rank_ablations(made, "loss")) == "234150"


def test_the_target_is_settled_by_the_clean_run() -> None:
    model = digits()
    settled = hookscope.ablate(model, input=X)
    named = hookscope.ablate(model, input=X, target=model(X).argmax(1))
    assert settled.ablations == named.ablations
    assert any(ablation.flipped for ablation in settled.ablations)


@pytest.mark.parametrize("name", ["ce", "kl", "mse", "logit", "sum", "norm"])
def test_the_loss_is_after_minus_before(name: str) -> None:
    found = hookscope.ablate(digits(), input=X, loss=name, target=4, rank="loss")
    assert (found.rank, found.clean.loss_name) == ("loss", name)
    for ablation in found.ablations:
        shots = [
            hookscope.grads(digits(), input=X, loss=name, target=4, layers="fc", edits=edits)
            for edits in ((), ablation.edit("zero"))
        ]
        before, after = (shot.metadata["loss"]["value"] for shot in shots)
        assert ablation.loss == after - before


def test_a_loss_of_ones_own_gets_the_output() -> None:
    def energy(output: Tensor) -> Tensor:
        return output.square().sum()

    model = digits()
    found = hookscope.ablate(model, input=X, layers="fc", loss=energy)
    assert found.ablations[0].loss == -float(model(X).detach().square().sum())


class Two(nn.Module):
    """Two outputs and no classes; a layer that gives indices, one that never runs, one for NaN."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(4, 3)
        self.picks = Module(lambda self, x: x.argsort(1))
        self.idle = nn.Linear(2, 2)
        self.root = Module(lambda self, x: x / x.norm())

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        first = self.first(x)
        order = self.picks(first)
        return self.root(first.gather(1, order)), {"more": self.second(x), "order": order}


def test_without_classes_there_is_the_output_alone_of_all_its_floating_tensors() -> None:
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    model = Two()
    found = hookscope.ablate(model, input=x)
    assert (found.rank, found.clean.score, found.clean.loss, found.clean.decisions) == (
        *("output", None, None),
        0,
    )
    root, more = (y.detach().double() for y in (model(x)[0], model(x)[1]["more"]))
    whole = torch.cat([root.flatten(), more.flatten()]).norm()
    made = {ablation.layer: ablation for ablation in found.ablations}
    assert made["second"].output == pytest.approx(float(more.norm() / whole), rel=1e-12)
    assert made["root"].output == pytest.approx(float(root.norm() / whole), rel=1e-12)
    assert made["second"].score is made["second"].loss is made["second"].flipped is None


def test_what_cannot_be_ablated_is_told_with_its_reason_and_nan_is_loud() -> None:
    found = hookscope.ablate(Two(), input=torch.ones(2, 4))
    assert [(one.layer, one.type) for one in found.left_out] == [("picks", "Module")]
    assert [one.module for one in found.coverage.not_executed] == ["idle"]
    assert found.ablations[0].layer == "first"
    assert math.isnan(found.ablations[0].output or 0)  # zero over its norm


def test_a_model_that_fails_without_a_layer_is_told_and_the_others_go_on() -> None:
    found = hookscope.ablate(Picky(), input=torch.ones(2, 4))
    good, bad = found.ablations
    assert (good.layer, good.failed, bad.layer, bad.score) == ("last", "", "first", None)
    assert "all is zero" in bad.failed


def test_a_module_that_is_called_twice_is_ablated_in_both_calls() -> None:
    shared = nn.Linear(4, 4, bias=False)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    found = hookscope.ablate(model, input=torch.ones(2, 4), layers="0")
    assert [(k.layer, k.output) for k in found.ablations] == [("0", 1.0)]


def test_what_can_only_fail_is_an_error() -> None:
    with pytest.raises(CheckFailed, match=r"of first: .*all is"):
        hookscope.ablate(Picky(), input=torch.ones(2, 4), layers="first")


def test_nothing_to_ablate_is_an_error_with_the_reason() -> None:
    with pytest.raises(RequestError, match="mean; fc: "):
        hookscope.ablate(digits(), input=X[:1], layers="fc", by="mean")
    with pytest.raises(RequestError, match="idle: "):
        hookscope.ablate(Two(), input=torch.ones(2, 4), layers="idle")


def test_a_model_that_is_not_deterministic_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    unsteady = Module(lambda self, x: self.layer(x) + next(self.runs), layer=nn.Identity())
    unsteady.runs = itertools.count(1)  # type: ignore[assignment]
    with caplog.at_level("WARNING", logger="hookscope"):
        hookscope.ablate(unsteady, input=torch.ones(2, 4))
    assert "output differs" in caplog.text and "0.5" in caplog.text
    caplog.clear()
    with caplog.at_level("WARNING", logger="hookscope"):
        hookscope.ablate(digits(), input=X)
    assert not caplog.text


def test_an_output_that_the_next_run_overwrites_is_kept() -> None:
    reuses = Module(lambda self, x: self.place.copy_(self.layer(x)), layer=nn.Identity())
    reuses.place = torch.zeros(2, 4)
    [ablation] = hookscope.ablate(reuses, input=torch.ones(2, 4)).ablations
    assert ablation.output == 1.0


def test_an_output_of_another_shape_has_no_figure() -> None:
    def rows(self: Module, x: Tensor) -> list[Tensor]:
        y = self.layer(x)
        return [y[y.sum(1) > 0]]

    [ablation] = hookscope.ablate(
        Module(rows, layer=nn.Identity()), input=torch.ones(2, 4)
    ).ablations
    assert (ablation.output, ablation.failed) == (None, "")


def test_channels_that_not_every_tensor_has_are_told() -> None:
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    net = Module(lambda self, x: self.attention(x, x, x)[0], attention=attention)
    found = hookscope.ablate(net, input=x, layers="attention", channels=True)
    assert sorted(k.channel or 0 for k in found.ablations) == list(range(5))
    [left] = found.left_out
    assert "from 5 up" in left.reason


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"layers": "conv9"}, LayerError, "conv9"),
        ({"target": 12}, LossError, "12"),
        ({"target": "uniform", "rank": "score"}, LossError, "class"),
    ],
)
def test_a_wrong_request_is_refused(options: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        hookscope.ablate(digits(), input=X, **options)


def test_a_target_that_is_no_class_has_a_loss_and_no_score() -> None:
    found = hookscope.ablate(digits(), input=X, target="uniform")
    assert (found.clean.score, found.rank) == (None, "output")
    assert all(k.loss is not None and k.flipped is not None for k in found.ablations)


# The file


class Stop(BaseException):
    """What Ctrl-C is, for a test."""


def stopped_after(number: int) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        if done == number:
            raise Stop

    return progress


def ablate_to(file: Path, **more: Any) -> Any:
    options: dict[str, Any] = {"input": X, "layers": "conv1", "channels": True, "by": "noise"}
    return hookscope.ablate(f"{SAMPLES}/digits.py:trained", **(options | more), file=file)


def test_a_resumed_ablation_is_the_uninterrupted_one_byte_for_byte(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole.json", tmp_path / "parts.json"
    expected = ablate_to(whole)
    seen: list[int] = []
    for number in (5, 11):
        with pytest.raises(Stop):
            ablate_to(parts, progress=stopped_after(number))
        found = json.loads(parts.read_text())
        assert (found["finished"], len(found["ablations"])) == (False, number)
    resumed = ablate_to(parts, progress=lambda done, total: seen.append(done))
    assert seen == list(range(11, 17))
    assert (resumed.resumed, resumed.ablations) == (11, expected.ablations)
    assert parts.read_bytes() == whole.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"whole.json", "parts.json"}


def test_a_finished_file_is_made_anew(tmp_path: Path) -> None:
    ablate_to(tmp_path / "a.json")
    assert ablate_to(tmp_path / "a.json").resumed == 0


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"by": "zero"},
        {"input": X + 1e-3},
        {"target": 3},
        {"loss": "mse"},
        {"layers": "conv?"},
        {"dtype": "float64"},
    ],
    ids=str,
)
def test_an_interrupted_file_of_another_request_is_not_gone_on_from(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    file = tmp_path / "a.json"
    with pytest.raises(Stop):
        ablate_to(file, progress=stopped_after(5))
    assert ablate_to(file, **other).resumed == 0
    assert json.loads(file.read_text())["finished"]


def test_other_weights_are_another_request(tmp_path: Path) -> None:
    first, last = nn.Linear(4, 4), nn.Linear(4, 3)
    nn.init.zeros_(last.weight)  # what the first layer gives is not seen in the clean output
    model, file = nn.Sequential(first, last), tmp_path / "a.json"
    with pytest.raises(Stop):
        hookscope.ablate(model, input=torch.ones(2, 4), file=file, progress=stopped_after(1))
    with torch.no_grad():
        first.weight += 1e-3
    assert hookscope.ablate(model, input=torch.ones(2, 4), file=file).resumed == 0


def test_nan_and_infinity_survive_the_file(tmp_path: Path) -> None:
    file, x = tmp_path / "a.json", torch.ones(2, 4)
    expected = hookscope.ablate(Two(), input=x).ablations
    with pytest.raises(Stop):
        hookscope.ablate(Two(), input=x, file=file, progress=stopped_after(2))
    found = hookscope.ablate(Two(), input=x, file=file)
    assert found.resumed == 2
    assert repr(found.ablations) == repr(expected)


@pytest.mark.parametrize("given", [{"target": 3}, {"reduction": "sum"}, {"raw": True}])
def test_what_is_only_for_classes_is_not_ignored(given: Any) -> None:
    net = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(LossError, match=next(iter(given))):
        hookscope.ablate(net, input=torch.ones(2, 5, 3), **given)


def test_an_output_without_tensors_cannot_be_measured() -> None:
    with pytest.raises(LossError, match="tensor"):
        hookscope.ablate(no_tensor(), input=torch.ones(2, 4))


def test_layers_inside_the_fast_path_of_transformers_are_ablated() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[0, 3:] = True
    call = ((torch.randn(2, 5, 8),), {"src_key_padding_mask": mask})
    found = hookscope.ablate(encoder, input=call, types=["Linear"], rank="output")
    layers = {ablation.layer for ablation in found.ablations}
    assert {"layers.0.linear1", "layers.1.linear2"} <= layers
    assert torch.backends.mha.get_fastpath_enabled()
