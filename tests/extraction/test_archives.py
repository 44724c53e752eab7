"""Foreign tar archives: nothing is unpacked, and nothing is skipped without a message."""

from __future__ import annotations

import io
import logging
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import hookscope
from hookscope.errors import InputError
from hookscope.files.input_list import InputEntry, list_entries
from tests.memory import memory_below

from .conftest import contents, extract_photos


def png(shade: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((16, 16, 3), shade, np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, size
    return info.tobuf(tarfile.GNU_FORMAT)


def write(path: Path, *parts: tuple[bytes, bytes]) -> Path:
    """Write headers, each followed by its bytes."""
    data = b"".join(head + body + bytes(-len(body) % 512) for head, body in parts)
    path.write_bytes(data + bytes(1024))
    return path


def image(name: str, shade: int = 0) -> tuple[bytes, bytes]:
    return member(name, size=len(png(shade))), png(shade)


def test_names_that_leave_the_folder_are_names_and_nothing_is_written(photos, tmp_path) -> None:
    names = ["../../out.png", "/etc/out.png", "a/../../b.png", "..png", "\x1b[31m.png"]
    path = write(tmp_path / "a.tar", *(image(name, i * 20) for i, name in enumerate(names)))
    before = contents(tmp_path)
    out = tmp_path / "out"
    extract_photos(photos, out, layers="conv", input=str(path))
    assert [one["path"] for one in hookscope.load(out).inputs] == [f"{path}::{n}" for n in names]
    after = {name: data for name, data in contents(tmp_path).items() if not name.startswith("out/")}
    assert after == before
    assert not os.path.exists("/etc/out.png")


def test_links_devices_and_members_with_holes_are_left_out_with_a_warning(tmp_path, caplog) -> None:
    kinds = [tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE]
    parts = [(member(f"{i}.png", kind, "/etc/passwd"), b"") for i, kind in enumerate(kinds)]
    outside = (member("hard.png", tarfile.LNKTYPE, "/etc/passwd"), b"")
    others = [(member("a.txt", tarfile.SYMTYPE, "b"), b""), (member("x.png", tarfile.DIRTYPE), b"")]
    path = write(tmp_path / "a.tar", *parts, image("good.png"), outside, *others)
    with caplog.at_level(logging.WARNING, "hookscope"):
        assert [entry.name for entry in list_entries([str(path)])] == [f"{path}::good.png"]
    assert "5 images" in caplog.text and "'0.png'" in caplog.text


def test_a_hard_link_to_an_image_before_it_is_that_image(tmp_path: Path, caplog) -> None:
    (tmp_path / "a.png").write_bytes(png(7))
    os.link(tmp_path / "a.png", tmp_path / "b.png")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / "a.png", "a.png")
        archive.add(tmp_path / "b.png", "b.png")
        assert archive.getmember("b.png").islnk()
    found = list_entries([str(tmp_path / "a.tar")])
    assert [entry.name.rpartition("::")[2] for entry in found] == ["a.png", "b.png"]
    assert {entry.read() for entry in found} == {png(7)}
    assert not caplog.records


def test_a_member_stored_with_holes_is_not_read_as_if_it_had_none(tmp_path: Path, caplog) -> None:
    holes = bytearray(member("holes.png", tarfile.GNUTYPE_SPARSE, size=512))
    holes[386:398], holes[398:410] = b"00000000000\0", b"00000001000\0"
    holes[483:495] = b"77777777777\0"  # of eight gigabytes only one block is stored
    holes[148:156] = b" " * 8
    holes[148:156] = b"%06o\0 " % sum(holes)
    path = write(tmp_path / "a.tar", (bytes(holes), bytes(512)), image("good.png"))
    with caplog.at_level(logging.WARNING, "hookscope"):
        assert [entry.name for entry in list_entries([str(path)])] == [f"{path}::good.png"]
    assert "sparse" in caplog.text and "'holes.png'" in caplog.text


@pytest.mark.parametrize("size", [2**40, 2**62, -512, -1024, -(2**62)])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_an_absurd_size_is_refused(tmp_path, size: int, kind: bytes) -> None:
    path = write(tmp_path / "a.tar", image("a.png"), (member("b.png", kind, size=size), b"x"))
    with pytest.raises(InputError, match="tar archive"):
        list_entries([str(path)])


def test_a_tar_that_is_cut_off_or_damaged_loses_no_row_in_silence(tmp_path) -> None:
    path = write(tmp_path / "a.tar", image("a.png"), image("b.png"))
    assert len(list_entries([str(path)])) == 2
    whole, at = path.read_bytes(), 512 + -(-len(png(0)) // 512) * 512
    for damaged in (whole[: at + 100], whole[:at] + b"x" + whole[at + 1 :]):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=f"byte {at}"):
            list_entries([str(path)])


@pytest.mark.parametrize("size", [None, 3 * 10**9])
def test_a_file_of_holes_is_not_read_into_memory(tmp_path: Path, size: int | None) -> None:
    path = tmp_path / "a.png"
    with path.open("wb") as file:
        file.truncate(10**12)
    with memory_below(1_000_000), pytest.raises(InputError, match="2,000,000,000"):
        InputEntry(str(path), str(path), 0, size).read()


def test_an_archive_of_very_many_members_takes_little_memory(tmp_path: Path) -> None:
    head = member("a.txt")
    path = write(tmp_path / "a.tar", *[(head, b"")] * 4_000, image("a.png"))
    with memory_below(1_000_000):
        assert len(list_entries([str(path)])) == 1
