"""A word for an edit is read as documented, or refused with what it should have been."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from hookscope.errors import EditError, LayerError
from hookscope.hooks.edits.edited_weights import WEIGHT_OPERATIONS
from hookscope.hooks.edits.operations import OPERATIONS
from hookscope.specs.edit import (
    GRADIENT_OPERATIONS,
    VALUE_OPERATIONS,
    TensorSource,
    check_comparison,
    check_second_order,
    files_read_by,
    parse_edits,
)

READ: dict[str, tuple[Any, ...]] = {
    "fc=zero": ("output", "fc", None, None, "zero", None),
    "layer1.*=scale:-2e-1": ("output", "layer1.*", None, None, "scale", -0.2),
    "layer3.0.relu:2=zero": ("output", "layer3.0.relu", 2, None, "zero", None),
    "conv1[3,7,10-12]=zero": ("output", "conv1", None, (3, 7, 10, 11, 12), "zero", None),
    "relu:2[5-5, 1]=zero": ("output", "relu", 2, (1, 5), "zero", None),
    "input:a.b:3[0,2-4]=scale:2": ("input", "a.b", 3, (0, 2, 3, 4), "scale", 2.0),
    "layer[12].{conv,bn}[ab]=mean": ("output", "layer[12].{conv,bn}[ab]", None, None, "mean", ""),
    "fc=quantize-weights:8": ("weights", "fc", None, None, "quantize-weights", 8),
}


@pytest.mark.parametrize("word", READ)
def test_an_edit_is_read(word: str) -> None:
    [edit] = parse_edits(word)
    *fields, positions = edit
    assert (tuple(fields[1:]), positions) == (READ[word], None)
    assert edit.text == word and edit.what == word.rpartition("=")[2]


ARGUMENTS: dict[str, Any] = {
    "noise:0": (0.0, False),
    "noise:2std": (2.0, True),
    "dropout:0": 0.0,
    "dropout:0.999": 0.999,
    "clamp:1,1": (1.0, 1.0),
    "clamp:-inf,0": (-math.inf, 0.0),
    "quantize:1": 1,
    "quantize:16": 16,
    "mean:batch": "batch",
    "mean:spatial": "spatial",
    "mean:channel": "channel",
    "scale:-0": -0.0,
    "dtype:bfloat16": "bfloat16",
}


@pytest.mark.parametrize("word", ARGUMENTS)
def test_arguments_up_to_their_bounds_are_read(word: str) -> None:
    assert parse_edits(f"a={word}")[0].argument == ARGUMENTS[word]


REFUSED = """
    noise:-0.1 noise:-1 noise:1stds noise:std dropout:-0.1 dropout:1 quantize:17 quantize:-1
    quantize:0 quantize:1.5 quantize-weights:1 clamp:nan,1 clamp:0,nan clamp:1 clamp:2,1 clamp:1,2,3
    scale scale:much scale:nan scale:inf mean:x mean:time dtype: dtype:int8 zero:1
"""
REFUSED_OF_GRADIENTS = "clip:-1 norm:-1 sign:1 l2 reverse:2"
CASES = [(word, False) for word in REFUSED.split()]
CASES += [(word, True) for word in REFUSED_OF_GRADIENTS.split()]


@pytest.mark.parametrize(("word", "gradients"), CASES)
def test_arguments_beyond_their_bounds_are_refused_with_an_example(
    word: str, gradients: bool
) -> None:
    with pytest.raises(EditError) as caught:
        parse_edits(f"a={word}", gradients=gradients)
    name, _, argument = word.partition(":")
    table = GRADIENT_OPERATIONS if gradients else VALUE_OPERATIONS
    assert caught.value.hint == f"Write {table[name].example}."
    assert word in str(caught.value) and caught.value.exit_code == 2
    said = caught.value.message.partition(word)[2]
    assert any(part.removesuffix("std") in said for part in argument.split(","))


@pytest.mark.parametrize(
    ("word", "subject"),
    [
        ("fc", "'fc'.*LAYER=OPERATION"),
        ("=zero", "'=zero'"),
        ("fc=", "'fc='"),
        ("!fc=zero", "!"),
        ("fc=scael:2", r"'scael'.* --edit\b.*scale\?"),
        ("fc=reverse", r"'reverse'.* --edit\b.*--grad-edit"),
        ("input:fc=quantize-weights:4", "input:.*Write fc=quantize-weights:4"),
        ("fc:2=quantize-weights:4", "a call.*Write fc=quantize-weights:4"),
        ("fc@-1=quantize-weights:4", "positions.*Write fc=quantize-weights:4"),
        ("fc[3]=quantize-weights:4", "channels.*Write fc=quantize-weights:4"),
        ("fc=patch:nowhere", "'nowhere'"),
        ("fc=add:nowhere", "FILE#KEY"),
        ("fc=add:nowhere#fc/output", "'nowhere'"),
        ("fc[]=zero", "'' is not"),
        ("fc[7-3]=zero", "'7-3'"),
        ("fc[1--2]=zero", "'1--2'"),
        (f"a[0-{1 << 20}]=zero", f"'0-{1 << 20}'"),
        ("fc:0=zero", "call 0.*from 1"),
    ],
)
def test_a_wrong_word_is_refused_with_what_is_wrong(word: str, subject: str) -> None:
    with pytest.raises(EditError, match=f"(?s){subject}") as caught:
        parse_edits(word)
    assert caught.value.exit_code == 2


def test_a_brace_without_its_partner_is_refused() -> None:
    with pytest.raises(LayerError, match="brace"):
        parse_edits("layer{1,2=zero")


def test_several_edits_and_a_million_channels_are_read() -> None:
    assert [e.name for e in parse_edits(["a=zero", "b=mean"])] == ["zero", "mean"]
    assert len(parse_edits(f"a[0-{(1 << 20) - 1}]=zero")[0].channels or ()) == 1 << 20


def test_gradients_have_operations_of_their_own_and_no_inputs() -> None:
    assert parse_edits("fc=l2:0.01", gradients=True)[0].kind == "output.grad"
    for word, subject in (("fc=dropout:0.5", "--edit"), ("input:fc=zero", "output")):
        with pytest.raises(EditError, match=subject):
            parse_edits(word, gradients=True)


def test_files_may_hold_any_sign_and_are_listed(tmp_path: Path) -> None:
    file = tmp_path / "a=b:c#d.safetensors"
    file.touch()
    words = [f"fc=patch:{file}", "b=zero", f"fc=add:{file}#fc:2/output"]
    patch, _, add = parse_edits(words)
    assert patch.argument == TensorSource(str(file))
    assert add.argument == TensorSource(str(file), "fc:2/output", 1.0, "fc:2/output")
    assert files_read_by(words) == [str(file), str(file)]
    plain = tmp_path / "f.safetensors"
    plain.touch()
    [patch] = parse_edits(f"a=patch:{plain}#x")
    assert (patch.argument.path, patch.argument.key) == (str(plain), "x")
    for wrong in (f"{plain}#", "#x", str(plain)):
        with pytest.raises(EditError, match="FILE#KEY"):
            parse_edits(f"a=add:{wrong}")


def test_what_cannot_be_together_is_refused() -> None:
    check_comparison(True, (), ["a=zero"])
    check_comparison(False)
    with pytest.raises(EditError, match="compare"):
        check_comparison(True, (), [])
    check_second_order(None, ["a=zero"], ["backward"])
    check_second_order("gp", (), ["forward"])
    with pytest.raises(EditError, match="--grad-edit"):
        check_second_order("gp", ["a=zero"], ["forward"])
    with pytest.raises(EditError, match="tensor"):
        check_second_order("gp", (), ["forward", "tensor"])


def test_every_operation_has_its_formula_and_an_example_that_can_be_read() -> None:
    known = OPERATIONS.keys() | WEIGHT_OPERATIONS
    assert known == VALUE_OPERATIONS.keys() | GRADIENT_OPERATIONS
    for gradients, table in ((False, VALUE_OPERATIONS), (True, GRADIENT_OPERATIONS)):
        for name, entry in table.items():
            if "FILE" not in entry.form:
                example = entry.example.partition(" ")[0]
                [edit] = parse_edits(f"fc={example}", gradients=gradients)
                assert edit.name == name
