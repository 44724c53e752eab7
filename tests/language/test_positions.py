"""Positions are counted in tokens, wherever a layer or a key is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import hookscope
from hookscope import load_model as load
from hookscope.errors import EditError, RequestError
from tests.conftest import Run
from tests.language.conftest import PROMPT, SHORT

BLOCK = "model.layers.0"


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A vision transformer of 4x4 patches and a class token."""
    from transformers import ViTConfig

    folder = tmp_path_factory.mktemp("vit")
    config = ViTConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=32,
        patch_size=8,
        architectures=["ViTModel"],
    )
    config.save_pretrained(folder)
    return f"hf:{folder}"


@pytest.mark.parametrize("name", ["llama", "left_padded"])
@pytest.mark.parametrize(
    ("positions", "first", "second"),
    [("0", [0], [0]), ("-1", [4], [1]), ("0-1", [0, 1], [0, 1]), ("-2,-1", [3, 4], [0, 1])],
)
def test_only_these_positions_are_stored_counted_in_tokens(
    name: str, positions: str, first: list[int], second: list[int], request: pytest.FixtureRequest
) -> None:
    spec = request.getfixturevalue(name)
    whole = hookscope.capture(spec, input=[PROMPT, SHORT], layers=BLOCK)
    part = hookscope.capture(spec, input=[PROMPT, SHORT], layers=f"{BLOCK}@{positions}")
    start = 3 if name == "left_padded" else 0  # of the second row
    rows = [first, [start + n for n in second]]
    key = f"{BLOCK}/output"
    expected = torch.stack([whole[key][row, at] for row, at in enumerate(rows)])
    assert torch.equal(part[key], expected)
    assert part.metadata["positions"] == [{"key": key, "dim": 1, "length": 5, "rows": rows}]
    assert part.metadata["options"]["layers"] == [f"{BLOCK}@{positions}"]


def test_a_token_is_found_by_its_text(gpt2: str) -> None:
    layer = "transformer.ln_f"
    whole = hookscope.capture(gpt2, input=PROMPT, layers=layer)
    part = hookscope.capture(gpt2, input=PROMPT, layers=f'{layer}@" France"')
    assert torch.equal(part[f"{layer}/output"], whole[f"{layer}/output"][:, 3:4])


def test_a_layer_selected_whole_too_is_stored_whole(gpt2: str) -> None:
    layers = ["transformer.h.0@-1", "transformer.h.0@0", "transformer.h.1@-1", "transformer.h.1"]
    shot = hookscope.capture(gpt2, input=PROMPT, layers=layers)
    assert shot["transformer.h.0/output"].shape == (1, 2, 24)
    assert shot["transformer.h.1/output"].shape == (1, 5, 24)


def test_attention_is_stored_for_these_queries(gpt2: str) -> None:
    layer = "transformer.h.0.attn"
    whole = hookscope.capture(gpt2, input=PROMPT, layers=layer, attention=True)
    part = hookscope.capture(gpt2, input=PROMPT, layers=f"{layer}@-1", attention=True)
    key = f"{layer}/attention"
    assert torch.equal(part[key], whole[key][:, :, 4:5])


def test_a_tensor_without_a_sequence_is_named(gpt2: str) -> None:
    shot = hookscope.capture(gpt2, input=[PROMPT, SHORT], layers=["transformer.wpe@-1", "lm_head"])
    assert [absent.module for absent in shot.absent] == ["transformer.wpe"]


def test_steps_of_a_generation_have_their_own_last_position(gpt2: str) -> None:
    whole = hookscope.capture(gpt2, input=PROMPT, layers="transformer.ln_f", generate=3)
    part = hookscope.capture(gpt2, input=PROMPT, layers="transformer.ln_f@-1", generate=3)
    assert [tuple(tensor.shape) for tensor in part.values()] == [(1, 1, 24)] * 3
    scores = hookscope.capture(gpt2, input=PROMPT, layers="lm_head@-1", generate=3)
    assert [tuple(tensor.shape) for tensor in scores.values()] == [(1, 1, 299)] * 3
    for key, tensor in part.items():
        assert torch.equal(tensor, whole[key][:, -1:])


def test_patches_are_named_by_row_and_column(vit: str) -> None:
    layer = "layers.1" if "layers.1" in names(vit) else "encoder.layer.1"
    whole = hookscope.capture(vit, layers=layer)
    part = hookscope.capture(vit, layers=f"{layer}@cls,2x3,-1")
    key = next(iter(part))
    assert torch.equal(part[key], whole[key][:, [0, 1 + 2 * 4 + 3, 16]])
    with pytest.raises(RequestError, match=r"4x0 .* 4x4"):
        hookscope.capture(vit, layers=f"{layer}@4x0")


def names(spec: str) -> list[str]:
    return [name for name, _ in load(spec).module.named_modules()]


@pytest.mark.parametrize(
    ("positions", "texts", "named"),
    [
        ("9", [PROMPT], "9 .* row 1, .* 5 tokens"),
        ("-6", [PROMPT], "-6 .* row 1"),
        ('"Paris"', [PROMPT], "'Paris'"),
        ('" of France"', [PROMPT], "2 tokens .* ' of' [+] ' France'"),
        ("3-1", [PROMPT], "3-1"),
        ("cls", [PROMPT], "@cls"),
        ("1x1", [PROMPT], "@1x1"),
        ('" France"', [PROMPT, SHORT], "1 positions of row 1 and 0"),
    ],
)
def test_positions_that_do_not_fit_are_an_error(
    gpt2: str, positions: str, texts: list[str], named: str
) -> None:
    for asked in ({"layers": f"lm_head@{positions}"}, {"edits": f"lm_head@{positions}=zero"}):
        with pytest.raises(RequestError, match=named):
            hookscope.capture(gpt2, input=texts, **asked)


# Edits


def by_hand(spec: str, layer: str, change: Callable[[Tensor], Tensor], texts: list[str]) -> Tensor:
    """The logits of a model whose layer returns what ``change`` makes of its output."""
    loaded = load(spec, weights="default")
    assert loaded.own_text is not None

    def hook(module: Any, args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (change(output[0]), *output[1:])
        return change(output)

    handle = loaded.module.get_submodule(layer).register_forward_hook(hook)
    with torch.no_grad():
        logits: Tensor = loaded.module(**loaded.own_text.run(texts)).logits
    handle.remove()
    return logits


@pytest.mark.parametrize(("name", "last"), [("llama", 1), ("left_padded", 4)])
def test_an_edit_changes_these_positions_only(
    name: str, last: int, request: pytest.FixtureRequest
) -> None:
    spec = request.getfixturevalue(name)
    shot = hookscope.capture(
        spec, input=[PROMPT, SHORT], layers=BLOCK, edits=f"{BLOCK}@-1[3,5]=scale:-2"
    )

    def change(x: Tensor) -> Tensor:
        x = x.clone()
        for row, at in ((0, 4), (1, last)):
            x[row, at, [3, 5]] *= -2
        return x

    expected = by_hand(spec, BLOCK, change, [PROMPT[5:], SHORT[5:]])
    assert torch.equal(shot.output["logits"], expected)
    before, after = shot[f"{BLOCK}/output.unedited"], shot[f"{BLOCK}/output"]
    assert torch.equal(after, change(before))


def test_an_edit_in_a_generation_reaches_the_last_token_of_each_step(gpt2: str) -> None:
    layer = "transformer.h.1"
    shot = hookscope.capture(
        gpt2, input=PROMPT, layers=layer, generate=3, edits=f"{layer}@-1=scale:0.5"
    )
    for key in (f"{layer}/output", f"{layer}:2/output", f"{layer}:3/output"):
        before = shot[key.replace("output", "output.unedited")]
        assert torch.equal(shot[key][:, -1], 0.5 * before[:, -1])
        assert torch.equal(shot[key][:, :-1], before[:, :-1])
    first = hookscope.capture(
        gpt2, input=PROMPT, layers=layer, generate=3, edits=f"{layer}@0=scale:0.5"
    )
    assert first.metadata["edits"][0]["changed"] == [f"{layer}/output"]


def test_a_gradient_is_edited_at_these_positions(gpt2: str) -> None:
    layer = "transformer.h.1"
    found = hookscope.grads(
        gpt2,
        input=PROMPT,
        loss="sum",
        layers=layer,
        what="output",
        grad_edits=f'{layer}@" of"=scale:3',
    )
    key = next(key for key in found if key.endswith("output.grad"))
    expected = found[f"{key}.unedited"].clone()
    expected[:, 2] *= 3
    assert torch.equal(found[key], expected)


def test_an_edit_of_a_layer_without_a_sequence_is_an_error(repo: Path) -> None:
    digits = f"{repo}/sample_models/digits.py:trained"
    with pytest.raises(EditError, match=r"fc .*@1"):
        hookscope.capture(digits, edits="fc@1=zero")


# Files


def test_show_and_plot_take_positions(gpt2: str, tmp_path: Path, run: Run) -> None:
    shot = hookscope.capture(gpt2, input=[PROMPT, SHORT], layers="transformer.ln_f")
    shot.save(tmp_path / "a.safetensors")
    words = ("show", "a.safetensors", "transformer.ln_f@-1", "--json")
    tensors = json.loads(run(*words, cwd=tmp_path).stdout)["tensors"]
    assert [tensor["slice"] for tensor in tensors] == ["[0,4]", "[1,1]"]
    values = shot["transformer.ln_f/output"]
    for tensor, (row, at) in zip(tensors, ((0, 4), (1, 1)), strict=True):
        assert tensor["stats"]["max"] == pytest.approx(float(values[row, at].max()))
    drawing = hookscope.plot(tmp_path / "a.safetensors", "transformer.ln_f@0-1", kind="heat")
    drawn = np.asarray(drawing.figure.axes[0].images[0].get_array())
    assert np.array_equal(drawn, values[0, :2].numpy())


def test_a_file_of_some_positions_is_shown_by_those_of_the_input(
    gpt2: str, tmp_path: Path, run: Run
) -> None:
    shot = hookscope.capture(gpt2, input=PROMPT, layers="transformer.ln_f@1,3")
    shot.save(tmp_path / "a.safetensors")
    words = ("show", "a.safetensors", "transformer.ln_f@3", "--json")
    [tensor] = json.loads(run(*words, cwd=tmp_path).stdout)["tensors"]
    assert tensor["slice"] == "[0,1]"
    assert {entry["tokens"][0] for entry in tensor["largest"]} == {" France"}
