"""A sweep equals patching by hand with plain hooks, in every cell and every bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

import hookscope
from hookscope.errors import CheckFailed, EditError, InputError, LossError, RequestError
from tests.hooks.edits.by_hand import rounded_weight
from tests.model_analysis.language_models import built, gpt2, llama
from tests.oracle.by_hand import outputs
from tests.zoo import Picky

CLEAN = torch.randint(64, (2, 6), generator=torch.Generator().manual_seed(1))
OTHER = torch.randint(64, (2, 6), generator=torch.Generator().manual_seed(2))
A, B = 3, 5
CAPITALS = "hf:sample_models/capitals"
ITALY, FRANCE = (f"text:the capital of {name} is" for name in ("Italy", "France"))
LONG = "text:yes , the capital of France is"
VECTORS = torch.randn(3, 4, generator=torch.Generator().manual_seed(3))


FAMILIES = [(gpt2, "transformer.h", "attn.c_proj"), (llama, "model.layers", "self_attn.o_proj")]


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def sweep(model: Any, **options: Any) -> hookscope.Sweep:
    """A sweep of a language model, or of the sample where ``options`` have an input."""
    return hookscope.sweep(model, **{"input": {"input_ids": CLEAN}, **options})


def first(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else value[0]


def with_first(value: Any, new: Tensor) -> Any:
    return new if isinstance(value, Tensor) else (new, *value[1:])


def logits_by_hand(model: Any, layer: str, hook: Any, x: Tensor, *, before: bool = False) -> Tensor:
    module = model.get_submodule(layer)
    register = module.register_forward_pre_hook if before else module.register_forward_hook
    handle = register(hook)
    with torch.no_grad():
        logits: Tensor = model(input_ids=x).logits
    handle.remove()
    return logits


def metrics_by_hand(clean: Tensor, logits: Tensor) -> dict[str, float]:
    """The metrics of the prediction after the last token."""
    p, q = (each[:, -1].double().log_softmax(-1) for each in (clean, logits))

    def mean(values: Tensor, token: int) -> float:
        return float(values[:, -1, token].double().mean())

    return {
        "score": mean(logits, A) - mean(clean, A),
        "difference": (mean(logits, A) - mean(logits, B)) - (mean(clean, A) - mean(clean, B)),
        "kl": float((p.exp() * (p - q)).sum(-1).mean()),
    }


@pytest.mark.parametrize(("make", "stack", "projection"), FAMILIES)
def test_every_cell_equals_patching_by_hand(
    make: Any, stack: str, projection: str, tmp_path: Path
) -> None:
    model = built(make)
    names = [f"{stack}.{n}" for n in range(3)]
    file = tmp_path / "other.safetensors"
    hookscope.capture(model, layers=names, input={"input_ids": OTHER}).save(file)
    options = {"layers": names, "positions": "all", "target": A, "against": B}
    found = sweep(model, edit=f"patch:{file}", **options)
    stored = outputs(model, input_ids=OTHER)
    with torch.no_grad():
        clean = model(input_ids=CLEAN).logits
    assert found.layers == tuple(names) and len(found.cells) == 3 * 6
    assert "were used" in found.reuse
    for cell in found.cells:

        def patch(module: Any, args: Any, output: Any, cell: Any = cell) -> Any:
            value = first(output).clone()
            value[:, cell.column] = stored[f"{cell.layer}/output"][:, cell.column]
            return with_first(output, value)

        expected = metrics_by_hand(clean, logits_by_hand(model, cell.layer, patch, CLEAN))
        assert {name: cell.metric(name) for name in expected} == expected
    assert any(cell.difference for cell in found.cells)


@pytest.mark.parametrize(("make", "stack", "projection"), FAMILIES)
def test_every_head_equals_zeroing_by_hand(make: Any, stack: str, projection: str) -> None:
    model = built(make)
    found = sweep(model, layers=f"{stack}.*", heads="auto", target=A, against=B)

    with torch.no_grad():
        clean = model(input_ids=CLEAN).logits
    assert found.layers == tuple(f"{stack}.{n}.{projection}" for n in range(3))
    for cell in found.cells:

        def zero(module: Any, args: Any, cell: Any = cell) -> Any:
            value = args[0].clone()
            value[..., cell.column * 8 : cell.column * 8 + 8] = 0
            return (value, *args[1:])

        logits = logits_by_hand(model, cell.layer, zero, CLEAN, before=True)
        expected = metrics_by_hand(clean, logits)
        assert {name: cell.metric(name) for name in expected} == expected


@pytest.mark.parametrize("edit", ["noise:0.5", "scale:1.5", "dtype:bfloat16", "mean:channel"])
def test_a_cell_equals_a_run_with_that_edit(edit: str) -> None:
    model = built(llama)
    found = sweep(model, edit=edit, layers="model.layers.?", target=A)

    x = {"input": {"input_ids": CLEAN}}
    clean = hookscope.capture(model, layers=".", **x).output.logits
    for cell in found.cells:
        run = hookscope.capture(model, layers=".", edits=f"{cell.layer}={edit}", **x)
        assert cell.score == metrics_by_hand(clean, run.output.logits)["score"]


def test_ablate_is_the_sweep_of_the_same_edit() -> None:
    net = small()
    for by, edit in (("zero", "zero"), ("mean", "mean:channel"), ("noise", "noise:1std")):
        swept = hookscope.sweep(net, edit=edit, input=VECTORS)
        for one in hookscope.ablate(net, by=by, input=VECTORS).ablations:
            cell = swept.cell(one.layer)
            assert (cell.score, cell.loss, cell.output, cell.flipped) == (
                *(one.score, one.loss, one.output, one.flipped),
            )


def test_rounded_weights_equal_those_by_hand() -> None:
    net, x = small(), VECTORS
    before = {name: value.clone() for name, value in net.state_dict().items()}
    found = hookscope.sweep(net, edit="quantize-weights:4", input=x, target=1)

    assert [layer.layer for layer in found.left_out] == ["1"]
    clean = net(x).detach()
    for name in ("0", "2"):
        layer = net.get_submodule(name)
        weight = layer.weight.detach().clone()
        scale = weight.abs().amax(1, keepdim=True) / 7
        with torch.no_grad():
            layer.weight.copy_((weight / scale).round() * scale)
        expected = float(net(x).detach()[:, 1].double().mean()) - float(clean[:, 1].double().mean())
        with torch.no_grad():
            layer.weight.copy_(weight)
        assert found.cell(name).score == expected
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_tied_weight_is_rounded_in_one_layer_only() -> None:
    model = built(gpt2)
    assert model.lm_head.weight is model.transformer.wte.weight
    found = sweep(model, edit="quantize-weights:2", layers="lm_head", target=A)

    value: dict[str, Tensor] = {}
    model.lm_head.register_forward_pre_hook(lambda m, args: value.update(x=args[0]))
    with torch.no_grad():
        clean = model(input_ids=CLEAN).logits
        logits = nn.functional.linear(value["x"], rounded_weight(model.lm_head.weight, 2))
    assert found.cell("lm_head").score == metrics_by_hand(clean, logits)["score"]
    assert model.lm_head.weight is model.transformer.wte.weight


def test_the_fact_moves_from_the_country_to_the_last_token(tmp_path: Path) -> None:
    file = tmp_path / "france.safetensors"
    layers = "model.layers.?"
    hookscope.capture(CAPITALS, layers=layers, input=FRANCE).save(file)
    options = {"layers": layers, "positions": "all", "target": " Paris", "against": " Rome"}
    found = sweep(CAPITALS, edit=f"patch:{file}", input=ITALY, **options)

    assert [column.label for column in found.columns][3:] == [" Italy", " is"]
    assert found.clean.difference is not None and found.clean.difference < -10
    early, late = "model.layers.0", "model.layers.1"
    assert (found.cell(early, "3").difference or 0) > 20  # the country is still to be read
    assert abs(found.cell(early, "4").difference or 0) < 2
    assert abs(found.cell(late, "3").difference or 0) < 1  # it has been moved
    assert (found.cell(late, "4").difference or 0) > 20


def test_positions_are_named_as_in_an_edit() -> None:
    x = {"input": ITALY, "layers": "model.layers.1", "target": " Rome"}
    found = hookscope.sweep(CAPITALS, positions='1-2,-1," Italy"', **x)
    whole = hookscope.sweep(CAPITALS, positions="all", **x)

    assert [column.name for column in found.columns] == ["1", "2", "-1", '" Italy"']
    scores = [cell.score for cell in found.cells]
    assert scores == [whole.cells[n].score for n in (1, 2, 4, 3)]


def test_positions_of_an_image_are_patches() -> None:
    model = torchvision.models.VisionTransformer(32, 16, 1, 2, 32, 64, num_classes=5)
    options = {"layers": "encoder.layers.encoder_layer_0", "positions": "cls,0x1"}
    found = hookscope.sweep(model, input=torch.ones(1, 3, 32, 32), metric="output", **options)
    assert [column.name for column in found.columns] == ["cls", "0x1"]


def test_positions_are_those_of_the_residual_stream_by_default() -> None:
    found = hookscope.sweep(CAPITALS, edit="zero", input=ITALY, positions="all")
    assert found.layers == tuple(f"model.layers.{n}" for n in range(4))
    named = sweep(CAPITALS, edit="zero", input=ITALY, positions="all", layers="model.layers.?")
    assert found.cells == named.cells
    whole = hookscope.sweep(CAPITALS, edit="zero", input=ITALY)
    assert "model.layers.0" not in whole.layers and len(whole.layers) > 4  # leaves


def test_an_interrupted_sweep_resumes(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    net, x = small(), VECTORS

    def interrupt(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hookscope.sweep(net, input=x, file=file, progress=interrupt)
    assert json.loads(file.read_text())["finished"] is False
    resumed = hookscope.sweep(net, input=x, file=file)
    whole = hookscope.sweep(net, input=x)

    assert resumed.resumed == 2
    assert resumed.cells == whole.cells
    assert json.loads(file.read_text())["finished"] is True


def test_a_vector_is_added_where_it_fits(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    file = tmp_path / "v.safetensors"
    save_file({"v": torch.ones(6)}, file)
    found = hookscope.sweep(small(), edit=f"add:{file}#v", input=VECTORS)

    assert found.layers == ("0", "1")
    [skipped] = found.left_out
    assert skipped.layer == "2"
    assert "v in" in skipped.reason and "3x3" in skipped.reason


def test_failed_runs_are_noted_in_their_cells() -> None:
    found = hookscope.sweep(Picky(), input=VECTORS)
    assert found.cell("first").failed
    assert not found.cell("last").failed
    with pytest.raises(CheckFailed, match="every change"):
        hookscope.sweep(Picky(), input=VECTORS, layers="first")


WRONG: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (RequestError, "Position 5", {"positions": "5"}),
    (RequestError, "'x'", {"positions": "x"}),
    (RequestError, "' Peru'", {"positions": '" Peru"'}),
    (InputError, "' Lisbon'", {"target": " Lisbon"}),
    (InputError, "' Paris Rome' is 2", {"target": " Paris Rome"}),
    (InputError, "' Lisbon'", {"target": " Rome", "against": " Lisbon"}),
    (LossError, "99999", {"target": "99999"}),
    (RequestError, "3 heads .* 32", {"heads": 3, "layers": "*.o_proj"}),
    (RequestError, "weights", {"edit": "quantize-weights:4", "positions": "all"}),
    (EditError, "'fc=zero'", {"edit": "fc=zero"}),
    (EditError, "'1'", {"edit": "quantize-weights:1"}),
    (EditError, "'patch:none.safetensors'", {"edit": "patch:none.safetensors"}),
    (RequestError, "second class", {"metric": "difference"}),
    (LossError, "class scores", {"target": "uniform", "against": " Rome"}),
    (RequestError, "from 5 to 7", {"input": [ITALY, LONG], "positions": "all"}),
]


@pytest.mark.parametrize(("error", "subject", "options"), WRONG)
def test_a_wrong_request_is_refused(
    error: type[Exception], subject: str, options: dict[str, Any]
) -> None:
    with pytest.raises(error, match=subject):
        hookscope.sweep(CAPITALS, **{"input": ITALY, "layers": "model.layers.?", **options})


def test_a_capture_of_another_length_is_refused(tmp_path: Path) -> None:
    file, layers = tmp_path / "long.safetensors", "model.layers.?"
    hookscope.capture(CAPITALS, layers=layers, input=LONG).save(file)
    with pytest.raises(RequestError, match=r"1x7x32 .* 1x1x32"):
        sweep(CAPITALS, edit=f"patch:{file}", positions="all", input=ITALY, layers=layers)


def test_a_model_whose_number_of_heads_is_not_known_is_refused() -> None:
    with pytest.raises(RequestError, match="attention heads"):
        hookscope.sweep(small(), heads="auto", input=VECTORS)
