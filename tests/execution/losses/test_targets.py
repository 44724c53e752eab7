"""Targets: words, labels, lists and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hookscope.errors import LossError
from hookscope.execution.target import resolve_target

LABELS = ("tench", "crane", "great white shark", "crane", "spoon, wooden")
ROWS = torch.tensor([[0.0, 3, 1, 0, 0], [5.0, 0, 0, 0, 0]])


@pytest.mark.parametrize(
    ("target", "classes"),
    [
        ("2", [2, 2]),
        (2, [2, 2]),
        ("2,4", [2, 4]),
        ("2, 4", [2, 4]),
        ([2, 4], [2, 4]),
        (np.int64(2), [2, 2]),
        (torch.tensor([1, 0]), [1, 0]),
        (torch.tensor(1), [1, 1]),
        ("argmax", [1, 0]),
        ("great white shark", [2, 2]),
        ("Great White Shark", [2, 2]),
        ("tench,2", [0, 2]),
        ("spoon, wooden", [4, 4]),
        (["tench", "spoon, wooden"], [0, 4]),
    ],
)
def test_a_class_can_be_named_in_many_ways(target: object, classes: list[int]) -> None:
    found = resolve_target(target, ROWS, LABELS).classes
    assert found is not None
    assert found.tolist() == classes


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("5", "There is no class 5: the model's output has 5 classes"),
        ("-1", "There is no class -1"),
        ("1,2,3", "3 targets do not fit a batch of 2"),
        (torch.tensor([0, 9]), "There is no class 9"),
        (torch.zeros(2, 4), "A target of shape 2x4 does not fit"),
        (torch.zeros(3, dtype=torch.int64), "class indices of shape 3 does not fit"),
        ("crane", "Several classes have the label 'crane': 1 and 3"),
        ("tensch", "No class has the label 'tensch'"),
        (None, "None is not a valid target"),
        ("no.npy", "There is no target file 'no.npy'"),
    ],
)
def test_a_target_that_does_not_fit_is_refused(target: object, message: str) -> None:
    with pytest.raises(LossError) as caught:
        resolve_target(target, ROWS, LABELS)
    assert message in caught.value.message


def test_argmax_is_taken_at_each_position() -> None:
    x = torch.randn(2, 3, 4, 5)
    target = resolve_target("argmax", x)
    assert target.classes is not None
    assert torch.equal(target.classes, x.argmax(1))
    assert target.text == "argmax at each position"


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("open('ran', 'w')",))


def test_no_target_file_is_unpickled_into_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("evil.npy", np.array([Evil()], dtype=object), allow_pickle=True)
    torch.save({"x": Evil()}, "evil.pt")
    for name in ("evil.npy", "evil.pt"):
        with pytest.raises(LossError, match=r"cannot be read|is not opened"):
            resolve_target(name, ROWS)
    assert not Path("ran").exists()


def test_a_file_that_no_target_is_read_from_is_told_with_those_that_are(tmp_path: Path) -> None:
    objects, image = tmp_path / "objects.npy", tmp_path / "img.png"
    np.save(objects, np.array([{}], dtype=object))
    image.write_bytes(b"\x89PNG\r\n")
    for path, message in ((objects, "cannot be read"), (image, "is an image")):
        with pytest.raises(LossError, match=message) as caught:
            resolve_target(str(path), ROWS, LABELS)
        assert ".npy, .safetensors, .pt or .pth" in caught.value.hint
