"""A word for an edit is read as documented, or refused with a sentence and its repair."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookscope.errors import EditError, LayerError
from hookscope.hooks.edits.edited_weights import WEIGHT_OPERATIONS
from hookscope.hooks.edits.operations import OPERATIONS
from hookscope.specs.edit import GRADIENT_OPERATIONS, VALUE_OPERATIONS, TensorSource, parse_edits


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("fc=zero", ("output", "fc", None, None, "zero", None)),
        ("layer1.*=scale:-2e-1", ("output", "layer1.*", None, None, "scale", -0.2)),
        (".=clamp:-1,1", ("output", ".", None, None, "clamp", (-1.0, 1.0))),
        ("layer3.0.relu:2=zero", ("output", "layer3.0.relu", 2, None, "zero", None)),
        ("conv1[3,7,10-12]=zero", ("output", "conv1", None, (3, 7, 10, 11, 12), "zero", None)),
        ("relu:2[5-5, 1]=zero", ("output", "relu", 2, (1, 5), "zero", None)),
        ("input:fc=noise:0", ("input", "fc", None, None, "noise", (0.0, False))),
        ("fc=noise:0.5std", ("output", "fc", None, None, "noise", (0.5, True))),
        (
            "layer[12].{conv,bn}[ab]=mean",
            ("output", "layer[12].{conv,bn}[ab]", None, None, "mean", ""),
        ),
        ("fc=mean:spatial", ("output", "fc", None, None, "mean", "spatial")),
        ("fc=mean:channel", ("output", "fc", None, None, "mean", "channel")),
        ("fc=quantize:8", ("output", "fc", None, None, "quantize", 8)),
        ("fc=quantize-weights:8", ("weights", "fc", None, None, "quantize-weights", 8)),
        ("fc=dtype:bfloat16", ("output", "fc", None, None, "dtype", "bfloat16")),
    ],
)
def test_an_edit_is_read(word: str, expected: tuple[object, ...]) -> None:
    *edit, positions = parse_edits(word)[0]
    assert (tuple(edit[1:]), positions) == (expected, None)


def test_files_may_hold_any_sign(tmp_path: Path) -> None:
    file = tmp_path / "a=b:c#d.safetensors"
    file.touch()
    [patch, add] = parse_edits([f"fc=patch:{file}", f"fc=add:{file}#fc:2/output"])
    assert patch.argument == TensorSource(str(file))
    assert add.argument == TensorSource(str(file), "fc:2/output", 1.0, "fc:2/output")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("fc", "'fc' is not a valid edit. | Write --edit LAYER=OPERATION"),
        ("=zero", "is not a valid edit"),
        ("fc=", "is not a valid edit"),
        ("!fc=zero", "A leading ! is not allowed here"),
        ("fc=scael:2", "no operation 'scael' for --edit. | Did you mean scale?"),
        ("fc=reverse", "no operation 'reverse' for --edit. | It belongs to --grad-edit."),
        ("fc=scale", "a number is missing. | Write scale:0.5."),
        ("fc=scale:much", "'much' is not a number"),
        ("fc=scale:nan", "nan is out of range"),
        ("fc=noise:-1", "-1 is out of range"),
        ("fc=noise:std", "a number is missing"),
        ("fc=dropout:1", "1 is out of range"),
        ("fc=zero:1", "it takes no argument, but '1' is given. | Write zero."),
        ("fc=clamp:1", "'1' is not LOW,HIGH. | Write clamp:-1,1."),
        ("fc=clamp:2,1", "2 is greater than 1"),
        ("fc=mean:time", "'time' is not one of batch, spatial"),
        ("fc=quantize:0", "'0' is not a number of bits from 1 to 16"),
        ("fc=quantize-weights:1", "'1' is not a number of bits from 2 to 16"),
        ("input:fc=quantize-weights:4", "the prefix input: cannot be used. | Write fc=quant"),
        ("fc:2=quantize-weights:4", "a call cannot be used. | Write fc=quantize-weights:4."),
        ("fc@-1=quantize-weights:4", "positions cannot be used. | Write fc=quantize-weights:4."),
        ("fc[3]=quantize-weights:4", "channels cannot be used. | Write fc=quantize-weights:4."),
        ("fc=dtype:int8", "'int8' is not one of float32, float64"),
        ("fc=patch:nowhere", "there is no file 'nowhere'"),
        ("fc=add:nowhere", "is not FILE#KEY"),
        ("fc=add:nowhere#fc/output", "there is no file 'nowhere'"),
        ("fc[]=zero", "'' is not a valid channel or range of channels. | Write numbers and ranges"),
        ("fc[7-3]=zero", "'7-3' is not a valid channel"),
        ("fc[1--2]=zero", "'1--2' is not a valid channel"),
        ("fc[0-99999999]=zero", "is not a valid channel"),
        ("fc:0=zero", "names call 0. | Calls are counted from 1."),
    ],
)
def test_a_wrong_word_is_refused_with_its_repair(word: str, message: str) -> None:
    with pytest.raises(EditError) as caught:
        parse_edits(word)
    assert message in str(caught.value).replace("\n", " | ")
    assert caught.value.exit_code == 2


def test_gradients_have_operations_of_their_own_and_no_inputs() -> None:
    assert parse_edits("fc=l2:0.01", gradients=True)[0].kind == "output.grad"
    with pytest.raises(EditError, match="It belongs to --edit"):
        parse_edits("fc=dropout:0.5", gradients=True)
    with pytest.raises(EditError, match="changes gradients at a module's output"):
        parse_edits("input:fc=zero", gradients=True)


def test_a_brace_without_its_partner_is_refused() -> None:
    with pytest.raises(LayerError, match="brace"):
        parse_edits("layer{1,2=zero")


def test_every_operation_has_its_formula_and_an_example_that_can_be_read(tmp_path: Path) -> None:
    known = OPERATIONS.keys() | WEIGHT_OPERATIONS
    assert known == VALUE_OPERATIONS.keys() | GRADIENT_OPERATIONS
    for gradients, table in ((False, VALUE_OPERATIONS), (True, GRADIENT_OPERATIONS)):
        for name, entry in table.items():
            if "FILE" not in entry.form:
                example = entry.example.partition(" ")[0]
                [edit] = parse_edits(f"fc={example}", gradients=gradients)
                assert edit.name == name
