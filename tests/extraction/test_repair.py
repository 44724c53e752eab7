"""Damaged or incomplete folders: the next run repairs them, and readers report them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hookscope
from hookscope.errors import InputError, RequestError, ResultsFileError, StoreError
from hookscope.stores.features import folder, manifest
from hookscope.stores.features.location import parse_location
from tests.refusals import refused

from .conftest import contents, extract_photos, flip_last_bit
from .conftest import extract_six_rows as extract
from .handwritten_features import ramp, write_features


def test_a_run_that_a_bad_image_ended_goes_on_without_it(photos, tmp_path) -> None:
    (photos / "06.jpg").write_bytes(b"no image")
    out = tmp_path / "out"
    with refused(InputError, r"06\.jpg", hint="resume skip_bad"):
        extract_photos(photos, out)
    assert extract_photos(photos, out, resume=True, skip_bad=True).resumed == 4
    extract_photos(photos, tmp_path / "whole", skip_bad=True)
    assert contents(out) == contents(tmp_path / "whole")
    with pytest.raises(RequestError, match="skip_bad was true"):
        extract_photos(photos, out, resume=True)


def test_a_run_that_finished_nothing_may_go_on_as_another(photos, tmp_path) -> None:
    (photos / "01.jpg").write_text("no image")
    out, another = tmp_path / "out", {"layers": "conv", "reduce": "pca:2", "skip_bad": True}
    with pytest.raises(InputError):
        extract_photos(photos, out, layers="conv")
    assert list(contents(out)) == [".parts/plan.json"]
    (out / "pca.safetensors").write_bytes(b"what another run fitted")
    extract_photos(photos, out, resume=True, **another)
    extract_photos(photos, tmp_path / "whole", **another)
    assert contents(out) == contents(tmp_path / "whole")


def test_going_on_and_beginning_anew_are_two_things(tmp_path) -> None:
    with pytest.raises(RequestError, match="resume and force"):
        extract(tmp_path / "out", resume=True, force=True)


def test_parts_are_in_order_beyond_eight_digits(tmp_path) -> None:
    part = {"file": "rows-00000000.safetensors", "bytes": 1, "crc32": "", "rows": 1, "inputs": []}
    location = parse_location(tmp_path)
    rows = [0, 99_999_998, 100_000_000, 200_000_000]
    for first in reversed(rows):
        folder.write_json(location, manifest.part_name(first), part | {"first": first})
    assert [part["first"] for part in manifest.read_parts(location)] == rows


def test_no_manifest_is_written_where_something_removed_a_part(tmp_path, monkeypatch) -> None:
    known = manifest.read_parts
    monkeypatch.setattr(manifest, "read_parts", lambda location: list(known(location))[1:])
    with pytest.raises(StoreError, match="4 of 6 rows"):
        extract(tmp_path / "out")
    monkeypatch.undo()
    extract(tmp_path / "out", resume=True)
    assert hookscope.verify(tmp_path / "out").ok


FITTED_DAMAGES = [Path.unlink, lambda path: path.write_bytes(b"x" * 40), flip_last_bit]


JUNK = (None, [], {}, 0, -1, "x", 1e99, [[]], {"a": 1}, True)


def changed(value: object):
    """Yield copies of a JSON value in which one part is missing or replaced."""
    places = value.items() if isinstance(value, dict) else enumerate(value)
    for location, part in list(places)[: None if isinstance(value, dict) else 1]:
        kept = value.copy()
        kept.pop(location)
        yield kept
        for junk in (*JUNK, *(changed(part) if part and isinstance(part, dict | list) else ())):
            kept = value.copy()
            kept[location] = junk
            yield kept


def read_all(out: Path) -> None:
    features = hookscope.load(out)
    for key in features.keys:
        features[key][:]
    features.inputs[1]
    assert len(list(features.inputs)) == features.rows
    hookscope.export(out, out.parent / "one.safetensors")


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_whatever_is_in_a_manifest_a_reader_says_that_it_is_damaged(tmp_path, every) -> None:
    out = write_features(tmp_path / "f", {"fc/output": ramp(4, 2)}, 2)
    (out / "pca.safetensors").write_bytes(b"")
    file = out / "manifest.json"
    fitted = {"file": "pca.safetensors", "bytes": 0, "crc32": ""}
    document = json.loads(file.read_text()) | {"options": {"x": 1}, "fitted": fitted}
    for damaged in list(changed(document))[::every]:
        file.write_text(json.dumps(damaged))
        try:
            read_all(out)
        except (RequestError, ResultsFileError) as error:
            assert error.exit_code == 2
        try:
            hookscope.verify(out)
        except StoreError as error:
            assert error.exit_code == 1
        except RequestError as error:
            assert "manifest.json" in str(error)
    file.write_text("[" * 100_000)
    with pytest.raises(ResultsFileError, match=r"manifest\.json"):
        hookscope.load(out)


def test_whatever_is_in_the_table_of_inputs_a_reader_says_that_it_is_damaged(tmp_path) -> None:
    out = write_features(tmp_path / "f", {"fc/output": ramp(4, 2)}, 2)
    table = out / "inputs.jsonl"
    kept = table.read_bytes()
    deep = b"[" * 100_000 + b"\n"
    for data in (b"", b"\n" * 4, b"3\n" * 4, b"{}\n" * 4, kept[:-1], kept * 2, deep * 4, None):
        table.unlink() if data is None else table.write_bytes(data)
        with pytest.raises(ResultsFileError, match=r"inputs\.jsonl"):
            hookscope.load(out).inputs[1]
        if data != kept[:-1]:  # every line can be read even without the last line end
            with pytest.raises(ResultsFileError, match=r"inputs\.jsonl"):
                list(hookscope.load(out).inputs)
        assert not hookscope.verify(out).ok


def test_a_shard_of_another_dtype_is_damaged(tmp_path) -> None:
    out = write_features(tmp_path / "f", {"fc/output": ramp(4, 12)}, 2)
    shard = out / "rows-00000002.safetensors"
    shard.write_bytes(shard.read_bytes().replace(b'"F32"', b'"I32"'))
    with pytest.raises(ResultsFileError, match=r"I32.*F32"):
        read_all(out)


def test_files_of_others_stay_whatever_becomes_of_the_results(tmp_path) -> None:
    out = tmp_path / "out"
    extract(out)
    others = ("rows-mine.csv", "rows-00000000.safetensors.bak", ".manifest.json", "sub/notes.txt")
    (out / "sub").mkdir()
    for name in others:
        (out / name).write_text("mine")
    (out / "rows-00000002.safetensors").unlink()
    extract(out, resume=True)
    extract(out, force=True)
    assert {(out / name).read_text() for name in others} == {"mine"}


@pytest.mark.parametrize("word", [{}, {"resume": True}, {"force": True}], ids=str)
def test_a_folder_of_another_programs_is_left_alone(tmp_path, word) -> None:
    for name in ("manifest.json", "inputs.jsonl", "rows-of-people.txt"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(RequestError, match="other files"):
        extract(tmp_path, **word)
    assert set(contents(tmp_path).values()) == {b"{}"}
