"""The variables of a frame are those of ``locals()``, whose dicts stay as they are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hookscope.files.frame_variables import variables_of

Found = tuple[dict[str, Any], dict[str, Any]]


def arguments(a: int = 1, /, *args: int, b: int = 2, **more: int) -> Found:
    deleted = a
    del deleted
    found = variables_of(sys._getframe())
    return found, {"a": a, "args": args, "b": b, "more": more}


def cells(a: int = 1) -> Found:
    own = [a]

    def inner() -> Found:
        mine = own
        return variables_of(sys._getframe()), {"mine": mine, "own": own, "a": a}

    found, expected = inner()
    both = variables_of(sys._getframe()), locals()
    assert both[0] == both[1]
    return found, expected


def comprehension() -> Found:
    [found] = [(variables_of(sys._getframe()), one)[0] for one in "x"]
    return {"one": found["one"]}, {"one": "x"}


def generator() -> Found:
    def numbers() -> Iterator[dict[str, Any]]:
        first = 1
        yield variables_of(sys._getframe())
        second = 2
        yield variables_of(sys._getframe())
        del first, second

    return list(numbers())[1], {"first": 1, "second": 2}


def executed() -> Found:
    space: dict[str, Any] = {"read": lambda: variables_of(sys._getframe(1))}
    exec("one = 1\nfound = dict(read())", space)
    return {"one": space["found"]["one"]}, {"one": 1}


def class_body() -> Found:
    class Body:
        one = 1
        found = variables_of(sys._getframe())

    return {"one": Body.found["one"]}, {"one": 1}


def raised() -> Found:
    def fail(a: int) -> None:
        b = 2 * a
        raise ValueError(b)

    with pytest.raises(ValueError) as error:
        fail(1)
    return variables_of(error.tb.tb_next.tb_frame), {"a": 1, "b": 2}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "function", [arguments, cells, comprehension, generator, executed, class_body, raised]
)
def test_the_variables_are_those_with_a_value(function: Callable[[], Found]) -> None:
    found, expected = function()
    assert found == expected


def test_a_dict_of_the_program_stays_as_it_was() -> None:
    held, later = locals(), 1
    before, count = dict(held), sys.getrefcount(later)
    for _ in range(100):
        variables_of(sys._getframe())
    if sys.version_info < (3, 13):  # since, a dict of locals() is the caller's alone
        assert held == before == {}
    assert sys.getrefcount(later) == count


def test_a_namespace_that_is_no_dict_is_not_read() -> None:
    class Namespace(dict):  # type: ignore[type-arg]
        def __delitem__(self, name: str) -> None:
            raise AssertionError("written to")

        __iter__ = keys = items = __delitem__  # type: ignore[assignment]

    class Kind(type):
        @classmethod
        def __prepare__(cls, *args: Any) -> Any:  # type: ignore[override]
            return Namespace()

        def __new__(cls, name: str, bases: Any, space: Any) -> Any:
            return space["found"], dict.__contains__(space, "found")

    class Body(metaclass=Kind):
        def method(self) -> Any:
            return __class__  # type: ignore[name-defined]

        found = variables_of(sys._getframe())

    assert Body == ({}, True)
