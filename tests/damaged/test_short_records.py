"""Archives whose records do not hold what their pickles and lists say, with right checksums."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import hookscope
from hookscope.errors import HookscopeError
from hookscope.files.weight_files import find_weight_files
from hookscope.sources.checkpoint import lazy_tensors
from tests.archives import Change, rezip
from tests.sources.torchscript.examples import quietly

X = torch.ones(2, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.fc(x))


def repacked(path: Path, change: Change, added: str = "") -> Path:
    """The archive at ``path`` with changed records, and perhaps one more, beside it."""
    changed = path.with_name(f"changed-{path.name}")
    return rezip(path, changed, change, added={added: b"x"} if added else None)


def cut(ending: str, size: int = 4) -> Change:
    return lambda name, data: data[:size] if name.endswith(ending) else data


def scripted(folder: Path) -> Path:
    path = folder / "net.pt"
    with quietly():
        torch.jit.save(torch.jit.script(Net()), path)
    return path


def exported(folder: Path) -> Path:
    path = folder / "net.pt2"
    torch.export.save(torch.export.export(Net(), (X,)), path)
    return path


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(HookscopeError) as caught:
        call()
    return caught.value.message


def assert_named(message: str, *parts: object) -> None:
    for part in parts:
        assert re.search(rf"(?<![\w.]){re.escape(str(part))}(?![\w])", message), part


def test_a_scripted_file_with_a_short_storage_is_refused(tmp_path: Path) -> None:
    path = repacked(scripted(tmp_path), cut("data/0"))
    for read in (lambda: hookscope.tree(path), lambda: hookscope.capture(path, input=X)):
        assert_named(refusal(read), path, "'net/data/0'", "4", "48")


def test_the_case_of_a_name_does_not_hide_a_short_storage(tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    torch.save(Net().state_dict(), path)
    upper = rezip(
        path,
        tmp_path / "upper.pt",
        cut("data/0"),
        rename=lambda name: name.replace("/data/0", "/DATA/0"),
    )
    message = refusal(lambda: hookscope.capture(nn.Sequential(), input=f"{upper}:fc.weight"))
    assert_named(message, "'net/data/0'", "4", "48")


def test_a_scripted_file_with_a_tensor_beyond_its_storage_is_refused(tmp_path: Path) -> None:
    # The shape (3, 4) as two numbers of one byte, in the tuple that follows the storage.
    longer = repacked(
        scripted(tmp_path),
        lambda name, data: data.replace(b"(K\x03K\x04t", b"(K\x7fK\x04t"),
    )
    assert_named(refusal(lambda: hookscope.tree(longer)), longer, "beyond")


@pytest.mark.parametrize("size", [0, 4])
def test_an_exported_file_with_a_short_weight_is_refused(tmp_path: Path, size: int) -> None:
    path = repacked(exported(tmp_path), cut("weight_0", size))
    message = refusal(lambda: hookscope.capture(path))
    assert_named(message, path, "'data/weights/weight_0'", size, "48")


@pytest.mark.parametrize("use", ["weights", "tree", "input", "target"])
def test_a_checkpoint_with_a_short_record_is_refused(tmp_path: Path, use: str) -> None:
    path = tmp_path / "saved.pt"
    content = Net().state_dict() if use in ("weights", "tree") else torch.zeros(2, 3)
    torch.save(content if use != "input" else X, path)
    short = repacked(path, cut("data/0"))
    calls: dict[str, Callable[[], object]] = {
        "weights": lambda: lazy_tensors(find_weight_files(str(short))),
        "tree": lambda: hookscope.tree(short),
        "input": lambda: hookscope.capture(Net(), input=short),
        "target": lambda: hookscope.grads(Net(), input=X, loss="mse", target=str(short)),
    }
    assert_named(refusal(calls[use]), short, "4")


def test_a_trusted_file_with_a_short_record_is_refused(tmp_path: Path) -> None:
    torch.save(Net(), tmp_path / "whole.pt")
    short = repacked(tmp_path / "whole.pt", cut("data/0"))
    assert_named(refusal(lambda: hookscope.tree(short, trust=True)), short, "4")


@pytest.mark.parametrize("make", [scripted, exported])
def test_a_record_outside_the_folder_of_an_archive_is_named(tmp_path: Path, make) -> None:
    path = repacked(make(tmp_path), lambda name, data: data, added="other/note.txt")
    assert_named(refusal(lambda: hookscope.tree(path)), path, "'other/note.txt'", "'net'")


def test_damaged_records_of_source_lines_are_not_read_by_pytorch(tmp_path: Path) -> None:
    """PyTorch takes gigabytes for such a record, or ends the process with SIGSEGV."""
    path = scripted(tmp_path)
    with zipfile.ZipFile(path) as archive:
        name, *_ = [n for n in archive.namelist() if n.endswith(".debug_pkl")]
        data = archive.read(name)
    refused = 0
    for position in range(180, len(data), 9):
        for byte in (0xFF, 0x7F, ord("r"), ord("X")):
            other = bytearray(data)
            other[position] = byte
            changed = repacked(path, lambda n, d: bytes(other) if n == name else d)  # noqa: B023
            try:
                hookscope.tree(changed)
            except HookscopeError as error:
                refused += 1
                assert "changed-net.pt" in error.message
    assert refused > 10
