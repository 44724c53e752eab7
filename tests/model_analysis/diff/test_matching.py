"""Which tensor belongs to which: by name, by a map of names, by order and shape."""

from __future__ import annotations

from hookscope.file_analysis.record_matches import match_records
from hookscope.results.records import Record, key_of


def records(*words: str) -> list[Record]:
    """``conv1:Conv2d:3x4``, ``conv1#2:Conv2d:3x4`` for a second call."""
    found = []
    for word in words:
        name, type_, shape = word.split(":")
        name, _, call = name.partition("#")
        lengths = tuple(map(int, shape.split("x")))
        number = int(call or 1)
        key = key_of(name, number, "output")
        found.append(
            Record(key, name, type_, number, "output", "output", lengths, "float32", "cpu")
        )
    return found


def matched(a: list[Record], b: list[Record], **prefixes: str) -> dict[str, tuple[str, str]]:
    found = match_records(a, b, prefixes)
    assert [pair[0] for pair in found.pairs] == [r for r in a if r not in found.only_a]
    return {one.module: (two.module, by) for one, two, by in found.pairs}


def test_names_come_first() -> None:
    a = records("one:Linear:2", "two:Linear:2", ".:Net:2")
    assert matched(a, a[::-1]) == {
        "one": ("one", "name"),
        "two": ("two", "name"),
        ".": (".", "name"),
    }


def test_a_map_changes_prefixes_at_dots_and_the_longest_counts() -> None:
    a = records("enc.a:Linear:2", "enc.b:Linear:2", "encoder:Linear:2")
    b = records("new.a:Linear:2", "other:Linear:2", "encoder:Linear:2")
    found = matched(a, b, **{"enc": "new", "enc.b": "other"})
    assert found == {
        "enc.a": ("new.a", "map"),
        "enc.b": ("other", "map"),
        "encoder": ("encoder", "name"),
    }


def test_a_map_from_and_to_nothing_adds_and_takes_a_prefix() -> None:
    bare, wrapped = records("a:Linear:2", ".:Net:2"), records("net.a:Linear:2", "net:Net:2")
    assert matched(bare, wrapped, **{"": "net"}) == {"a": ("net.a", "map"), ".": ("net", "map")}
    assert matched(wrapped, bare, net="") == {"net.a": ("a", "map"), "net": (".", "map")}


def test_order_type_and_shape_find_what_was_renamed() -> None:
    a = records("in:Linear:2", "old:Linear:3", "act:ReLU:3", "out:Linear:4")
    b = records("in:Linear:2", "new:Linear:3", "relu:ReLU:3", "out:Linear:4")
    found = matched(a, b)
    assert (found["old"], found["act"]) == (("new", "order"), ("relu", "order"))
    assert "old" not in matched(a, records("in:Linear:2", "new:Conv2d:3", "out:Linear:4"))
    assert "old" not in matched(a, records("in:Linear:2", "new:Linear:5", "out:Linear:4"))


def test_a_module_called_twice_finds_two_modules() -> None:
    a = records("one:Linear:2", "relu:ReLU:2", "two:Linear:2", "relu#2:ReLU:2")
    b = records("one:Linear:2", "relu1:ReLU:2", "two:Linear:2", "relu2:ReLU:2")
    found = match_records(a, b, {})
    assert [(x.key, y.key) for x, y, by in found.pairs if by == "order"] == [
        ("relu/output", "relu1/output"),
        ("relu:2/output", "relu2/output"),
    ]


def test_layers_in_other_places_are_no_partners() -> None:
    a = records("extra:Linear:2", "mid:Conv2d:2", "end:ReLU:2")
    b = records("mid:Conv2d:2", "late:Linear:2", "end:ReLU:2")
    found = match_records(a, b, {})
    assert [r.module for r in found.only_a] == ["extra"]
    assert [r.module for r in found.only_b] == ["late"]


def test_in_a_renamed_model_a_missing_layer_does_not_shift_the_others() -> None:
    a = records("a1:Linear:1", "a2:ReLU:2", "a3:Linear:3", "a4:Linear:4")
    b = records("b1:Linear:1", "b3:Linear:3", "b4:Linear:4")
    assert {one: two for one, (two, _) in matched(a, b).items()} == {
        "a1": "b1",
        "a3": "b3",
        "a4": "b4",
    }
