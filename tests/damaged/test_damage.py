"""Every kind of file, damaged in every way: its values or a sentence, and never more."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from hookscope.files.file_types import CHECKPOINT, TRUNCATED_SAFETENSORS, describe_file
from hookscope.files.output_path import MARK
from hookscope.specs import model_spec
from hookscope.stores.features.folder import shard_name
from hookscope.stores.weights import open_weights
from tests.damage import altered, changed, cut, endure, recounted, repacked
from tests.damaged.file_kinds import KINDS, RESULTS, SAMPLES

ANOTHER = [
    *(
        b"",
        b"\0",
        b"\xff\xfe" * 9,
        b"[]",
        b"{}",
        b"null",
        b"3",
        b'"x"',
        b"some words\n",
        b"\x80\x02].",
    ),
    *(
        b"[" * 100_000,
        b"[" * 900 + b"]" * 900,
        b'{"a":' * 100_000,
        b"9" * 5000,
        b"a = " + b"[" * 9000,
    ),
    *((SAMPLES / name).read_bytes() for name in ("five.png", "odd.csv")),
]


def with_other_json(data: bytes, rounds: int, seed: int) -> Iterable[bytes]:
    """A file of JSON, of lines of it, or with a header of it, that has other values."""
    length = int.from_bytes(data[:8], "little")
    if data[8:9] == b"{" and length < len(data):
        table, rest = json.loads(data[8 : 8 + length]), data[8 + length :]
        if MARK in table.get("__metadata__", ()):
            info = json.loads(table["__metadata__"][MARK])
            for other in altered(info, rounds, seed):
                yield packed({**table, "__metadata__": {MARK: json.dumps(other)}}, rest)
        yield from (packed(other, rest) for other in altered(table, rounds, seed))
    else:
        lines = None if data.rstrip().endswith(b"\n}") else list(map(json.loads, data.splitlines()))
        for other in altered(lines or json.loads(data), rounds, seed):
            yield "\n".join(map(json.dumps, other if lines else [other])).encode()


def packed(table: object, rest: bytes) -> bytes:
    header = json.dumps(table).encode()
    return len(header).to_bytes(8, "little") + header + rest


WAYS: dict[str, Callable[[bytes, int, int], Iterable[bytes]]] = {
    "cut": lambda data, rounds, seed: cut(data),
    "changed": changed,
    "counts": recounted,
    "other": lambda data, rounds, seed: [
        *ANOTHER,
        *(data[:at] + b"\xff\xfe\0" + data[at:] for at in range(9, len(data), len(data) // 3 + 1)),
    ],
    "json": with_other_json,
    "records": repacked,
}


def ways_of(name: str) -> list[str]:
    """The ways in which a kind of file can be damaged."""
    file = Path("a.safetensors" if name.partition(", ")[0] in RESULTS else name)
    if file.name == "tokenizer.json":  # without its unknown word, it is an exception of tokenizers
        return ["cut", "other"]
    with_json = file.suffix in (".json", ".jsonl", ".safetensors")
    zipped = file.suffix in (".pt", ".pth", ".bin", ".npz", ".pt2") and "old" not in file.stem
    return [w for w in WAYS if (w != "json" or with_json) and (w != "records" or zipped)]


CASES = [
    pytest.param(name, way, marks=[pytest.mark.exhaustive] if kind.exhaustive else [])
    for name, kind in KINDS.items()
    for way in ways_of(name)
]


@pytest.mark.parametrize(
    ("rounds", "seed"), [(8, 0), pytest.param(400, 1, marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize(("name", "way"), CASES)
def test_a_damaged_file_gives_its_values_or_a_sentence(
    tmp_path: Path, name: str, way: str, rounds: int, seed: int
) -> None:
    kind = KINDS[name]
    path = kind.write(tmp_path)
    kind.read(path)
    contents = list(WAYS[way](path.read_bytes(), max(rounds // kind.cost, 2), seed))
    if rounds < 100:  # another part of them for each kind
        step = -(-len(contents) // max(6 // kind.cost, 2))
        contents = contents[list(KINDS).index(name) % step :: step]
    named = (path.name, path.parent.name) if kind.named is None else (kind.named,)
    refused = endure(path, contents, lambda: kind.read(path), kind.error, named)
    if way == "cut" and way not in kind.lenient:
        assert refused >= len(contents) - 1  # the last byte may be a line break, or fill up a block
    elif way not in kind.lenient and (way == "other" or rounds > 100):
        assert refused


def test_every_kind_of_file_that_is_read_has_its_damage(tmp_path: Path) -> None:
    described = set()
    for n, kind in enumerate(KINDS.values()):
        folder = tmp_path / str(n)
        folder.mkdir()
        described.add(describe_file(str(kind.write(folder)))[0])
    declared = {*open_weights._READERS, *model_spec._SOURCES, CHECKPOINT} - {TRUNCATED_SAFETENSORS}
    assert declared <= described
    for sample in ("features", "run", "capitals"):
        for file in (SAMPLES / sample).iterdir():
            name = shard_name(4) if file.name.startswith("rows-") else file.name
            assert f"{sample}/{name}" in KINDS
