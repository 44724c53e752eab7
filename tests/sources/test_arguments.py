"""Model arguments typed on a command line."""

from __future__ import annotations

from typing import Literal, Optional

import pytest

from hookscope.errors import RequestError
from hookscope.sources.arguments import convert_arguments
from hookscope.specs.value_readers import CommandLineText


def build(
    width: int,
    scale: float,
    name: str,
    deep: bool,
    plain,
    maybe: Optional[int],  # noqa: UP045
    either: int | str,
    act: Literal["relu", "gelu", 3],
    sizes: list[int],
    pair: tuple[int, int],
) -> None: ...


class Net:
    def __init__(self, width: int) -> None: ...


class Later:
    def __init__(self, width: Missing) -> None: ...  # noqa: F821


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("width", "8", 8),
        ("scale", "8", 8.0),
        ("scale", "1e-3", 0.001),
        ("name", "8", "8"),
        ("name", "1e3", "1e3"),
        ("deep", "False", False),
        ("deep", "yes", True),
        ("plain", "8", 8),
        ("plain", "(1, 2)", (1, 2)),
        ("plain", "relu", "relu"),
        ("plain", "None", None),
        ("plain", "null", None),
        ("plain", "true", True),
        ("plain", '{"a": [1, null]}', {"a": [1, None]}),
        ("maybe", "null", None),
        ("pair", "[1, 2]", (1, 2)),
        ("maybe", "8", 8),
        ("maybe", "None", None),
        ("either", "8", 8),
        ("either", "wide", "wide"),
        ("act", "gelu", "gelu"),
        ("act", "3", 3),
        ("sizes", "[1, 2]", [1, 2]),
        ("unknown", "8", 8),
    ],
)
def test_a_value_follows_its_parameter(key: str, text: str, value: object) -> None:
    found = convert_arguments(build, {key: CommandLineText(text)})[key]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("key", "text", "wanted"),
    [
        ("width", "wide", "an integer"),
        ("width", "1.5", "an integer"),
        ("scale", "big", "a number"),
        ("deep", "maybe", "true or false"),
        ("maybe", "x", "int or none"),
        ("act", "tanh", "one of relu, gelu, 3"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(key: str, text: str, wanted: str) -> None:
    with pytest.raises(RequestError, match=f"{key}={text} .*{key} .*{wanted}"):
        convert_arguments(build, {key: CommandLineText(text)})


# A class is read by its constructor; an annotation that cannot be looked up leaves a literal.
@pytest.mark.parametrize("made", [Net, Later])
def test_a_class_is_read_by_its_constructor(made: type) -> None:
    assert convert_arguments(made, {"width": CommandLineText("8")}) == {"width": 8}


def test_values_from_python_stay_as_they_are() -> None:
    given = {"plain": "8", "width": "wide"}
    assert convert_arguments(build, given) == given
