"""Signatures of functions whose annotations name what exists for type checkers alone."""

import sys

import pytest

from hookscope.files.signatures import signature_of

UNKNOWN = "def forward(images: Tensor, *, scale: float = 2.0) -> Tensor: return images"


def test_parameters_and_text_of_a_signature_are_those_of_python() -> None:
    def forward(images: int, *, scale: float = 2.0) -> int:
        return images

    assert str(signature_of(forward)) == "(images: int, *, scale: float = 2.0) -> int"


@pytest.mark.parametrize(
    "text",
    [
        f"from __future__ import annotations\n{UNKNOWN}",
        pytest.param(
            UNKNOWN,
            marks=pytest.mark.skipif(
                sys.version_info < (3, 14), reason="annotations are computed at once"
            ),
        ),
    ],
)
def test_annotations_need_not_exist(text: str) -> None:
    names: dict[str, object] = {}
    exec(compile(text, "model.py", "exec", dont_inherit=True), names)
    forward = names["forward"]
    assert callable(forward)
    assert list(signature_of(forward).parameters) == ["images", "scale"]
    signature_of(forward).bind(1, scale=3)


def test_a_function_of_c_without_a_signature_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="signature"):
        signature_of(iter)
