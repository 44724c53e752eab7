"""Pickles are read as plain data: every protocol, and no code of them."""

from __future__ import annotations

import collections
import datetime
import io
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookscope.files.pickle_scan import DamagedPickle, LongPickle
from hookscope.files.plain_pickle import OpaqueObject, PlainUnpickler

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def load(data: bytes) -> Any:
    return PlainUnpickler(io.BytesIO(data)).load()


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
)


@given(plain, st.sampled_from(PROTOCOLS))
def test_plain_values_are_as_pickle_reads_them(value, protocol: int) -> None:
    assert load(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_shared_and_own_references_are_kept(protocol: int) -> None:
    shared: list[Any] = [1]
    shared.append(shared)
    found = load(pickle.dumps({"a": shared, "b": shared}, protocol))
    assert found["a"] is found["b"]
    assert found["a"][1] is found["a"]


class Thing:
    def __init__(self) -> None:
        self.size = 3
        raise AssertionError("it was built")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_object_is_its_name_and_its_state(protocol: int) -> None:
    thing = object.__new__(Thing)
    thing.__dict__["size"] = 5
    found = load(pickle.dumps([thing, thing], protocol))
    assert found[0] is found[1]
    assert isinstance(found[0], OpaqueObject)
    assert found[0].state == {"size": 5}
    assert protocol < 2 or found[0].name.endswith("test_plain_pickle.Thing")


def test_containers_of_other_classes_keep_their_items() -> None:
    listed = load(pickle.dumps(collections.UserList([1, 2])))
    assert listed.state == {"data": [1, 2]}
    ordered = load(pickle.dumps(collections.OrderedDict(a=1)))
    assert (ordered.name, ordered.entries) == ("collections.OrderedDict", {"a": 1})
    assert load(pickle.dumps({1, 2})) in ([1, 2], [2, 1])
    assert load(pickle.dumps(collections.deque([1, 2]))).elements == [1, 2]


def test_keys_become_texts_and_none_is_lost() -> None:
    day = datetime.date(2020, 1, 1)
    found = load(pickle.dumps({0: "a", None: "b", (1, 2): "c", (3, 4): "d", day: "e"}))
    assert sorted(found.values()) == ["a", "b", "c", "d", "e"]
    assert found["0"] == "a"
    assert sorted(load(pickle.dumps({"0": "a", 0: "b"})).values()) == ["a", "b"]


class Attack:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.made = function, arguments

    def __reduce__(self) -> Any:
        return self.made


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_is_called_or_imported(tmp_path: Path, protocol: int) -> None:
    unpickler = PlainUnpickler(
        io.BytesIO(pickle.dumps([Attack(os.mkdir, str(tmp_path / "made"))], protocol))
    )
    [found] = unpickler.load()
    assert found.name.endswith(".mkdir")
    assert list(unpickler.names) == [found.name]
    assert not (tmp_path / "made").exists()
    assert load(b"cno_such_module_at_all\nthing\n(tR.").name == "no_such_module_at_all.thing"


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b".", b"0.", b"N", b"(", b"t.", b"\x80\x02}NNs", b"h\x05.", b"NN\x93.", b"a."),
        *(b"](a.", b"N(NNu.", b"\x85.", b"b.", b"\x97.", b"I1\nR.", b"o.", b"garbage"),
    ],
)
def test_what_is_no_pickle_is_damaged(data: bytes) -> None:
    with pytest.raises(DamagedPickle):
        load(data)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "data", [b"\x80\x04\x8e" + b"\xff" * 7 + b"\0", b"B\xff\xff\xff\x7f", b"N0" * 2_000_001 + b"N."]
)
def test_what_would_take_memory_or_minutes_is_refused(data: bytes) -> None:
    with pytest.raises(LongPickle):
        load(data)
