"""Targets: words, labels, lists, tensors and files, for losses and for functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

import hookscope
from hookscope.errors import LossError
from hookscope.execution.loss import compute_loss
from hookscope.execution.target import read_target, resolve_target, target_for_function
from hookscope.specs.losses import check_target, is_target_file
from hookscope.tensors.torch_release import reads_pickles_safely

LABELS = ("tench", "crane", "great white shark", "crane", "spoon, wooden")
ROWS = torch.tensor([[0.0, 3, 1, 0, 0], [5.0, 0, 0, 0, 0]])
SCORES = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
MAPS = torch.randn(2, 4, 3, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("target", "classes", "text"),
    [
        ("2", [2, 2], None),
        (2, [2, 2], None),
        ("2,4", [2, 4], None),
        ("2, 4", [2, 4], None),
        ([2, 4], [2, 4], None),
        (np.int64(2), [2, 2], None),
        (torch.tensor([1, 0]), [1, 0], "given tensor (2)"),
        (torch.tensor([1, 0], dtype=torch.uint8), [1, 0], "given tensor (2)"),
        (torch.tensor(1), [1, 1], "given tensor (one number)"),
        (torch.tensor([[2]]), [2, 2], None),
        ("argmax", [1, 0], "argmax: 1 (crane), 0 (tench)"),
        ("great white shark", [2, 2], None),
        ("Great White Shark", [2, 2], None),
        ("tench,2", [0, 2], None),
        ("spoon, wooden", [4, 4], None),
        (["tench", "spoon, wooden"], [0, 4], None),
    ],
)
def test_a_class_can_be_named_in_many_ways(target: object, classes: list[int], text) -> None:
    found = resolve_target(target, ROWS, LABELS)
    assert found.classes is not None and found.values is None
    assert found.classes.tolist() == classes and found.classes.dtype is torch.int64
    assert text in (None, found.text)


@pytest.mark.parametrize(
    ("target", "subject", "hint"),
    [
        ("5", "no class 5.* 5 classes", "0 to 4"),
        ("-1", "no class -1", "0 to 4"),
        ([-1, 2], "no class -1", ""),
        ((0, -5), "no class -5", ""),
        (np.array([2, 5]), "no class 5", ""),
        ("2,5", "no class 5", ""),
        ("1,2,3", "3 .* 2", ""),
        (torch.tensor([0, 9]), "no class 9", ""),
        (torch.zeros(4, 2), "4x2", "2x5 or 5"),
        (torch.zeros(3, dtype=torch.int64), " 3 ", ""),
        (torch.zeros(2, 5, dtype=torch.complex64), "complex", ""),
        ("crane", "'crane': 1 and 3", "index"),
        ("tensch", "'tensch'", "tench"),
        ("zzzz", "'zzzz'", "A target is "),
        (None, "None", ""),
        ([None], "None", ""),
        ([object()], "object", ""),
        ([[1, 2]], "1, 2", ""),
        ("no.npy", "no.npy", ""),
    ],
)
def test_a_target_that_does_not_fit_is_refused(target: object, subject: str, hint: str) -> None:
    with pytest.raises(LossError, match=subject) as caught:
        resolve_target(target, ROWS, LABELS)
    assert hint in caught.value.hint


def test_labels_with_the_same_name_and_beyond_the_output_want_an_index() -> None:
    labels = ["a", "b", "a", "A"]
    with pytest.raises(LossError, match="'a': 0 and 2"):
        resolve_target("a", SCORES, labels)
    assert resolve_target("A", SCORES, labels).classes.tolist() == [3, 3]
    with pytest.raises(LossError, match="0 and 2"):
        resolve_target("B", SCORES, ["b", "x", "b"])
    with pytest.raises(LossError, match=r"no class 4.* 4 classes"):
        resolve_target("e", SCORES, list("abcde"))
    with pytest.raises(LossError, match="1 class") as caught:
        resolve_target(1, torch.zeros(2, 1))
    assert "0" in caught.value.hint
    with pytest.raises(LossError) as caught:
        resolve_target("zzzz", SCORES)
    assert "index" in caught.value.hint


@pytest.mark.parametrize("target", [[-1, 2], torch.tensor([-1, 2])])
def test_grads_refuses_a_class_out_of_range(target: Any) -> None:
    with pytest.raises(LossError, match="no class -1"):
        hookscope.grads(torch.nn.Linear(3, 4), input=torch.ones(2, 3), target=target)


# Maps and distributions


def test_classes_of_a_map_are_those_of_each_row_or_position() -> None:
    found = resolve_target(torch.tensor([1, 3]), MAPS).classes
    assert torch.equal(found, torch.tensor([1, 3])[:, None, None].expand(2, 3, 5))
    assert torch.equal(resolve_target([1, 3], MAPS).classes, found)
    for single in (torch.tensor(2), torch.tensor([2]), torch.tensor([[2]]), 2):
        assert torch.equal(resolve_target(single, MAPS).classes, torch.full((2, 3, 5), 2))
    classes = torch.randint(4, (2, 3, 5), generator=torch.Generator().manual_seed(1))
    value = compute_loss("ce", MAPS, classes, reduction="mean").value
    torch.testing.assert_close(value, F.cross_entropy(MAPS, classes))
    largest = resolve_target("argmax", MAPS)
    assert torch.equal(largest.classes, MAPS.argmax(1)) and "position" in largest.text
    assert torch.equal(resolve_target("uniform", MAPS).values, torch.full_like(MAPS, 0.25))


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 5, 3), (1, 3, 5)])
def test_class_indices_of_another_shape_are_refused_with_those_that_fit(
    shape: tuple[int, ...],
) -> None:
    with pytest.raises(LossError, match=f" {'x'.join(map(str, shape))} ") as caught:
        resolve_target(torch.zeros(shape, dtype=torch.int64), MAPS)
    assert "2x3x5 or 2" in caught.value.hint


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_floating_target_takes_the_type_of_the_scores(dtype: torch.dtype) -> None:
    values = torch.tensor([0.25, 0.25, 0.5, 0.0], dtype=dtype)
    found = resolve_target(values, SCORES)
    assert found.classes is None and found.values.dtype is torch.float32
    assert torch.equal(found.values, values.float().expand(2, 4))
    whole = torch.rand(2, 4, dtype=dtype)
    assert torch.equal(resolve_target(whole, SCORES).values, whole.float())


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (2, "argmax: 0 (a), 1 (b)"),
        (5, "argmax: 0 (a), 1 (b), 2, 3, 4"),
        (6, "argmax: 0 (a), 1 (b), 2, 3, 4, ..."),
    ],
)
def test_argmax_names_five_rows_and_says_if_there_are_more(rows: int, text: str) -> None:
    scores = torch.zeros(rows, 9)
    scores[range(rows), range(rows)] = 1.0
    assert resolve_target("argmax", scores, ["a", "b"]).text == text


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (np.zeros((2, 4), dtype=np.float32), "given tensor (2x4)"),
        ("1, 0", "1, 0"),
        ("uniform", "uniform over 4 classes"),
    ],
)
def test_the_target_is_named_in_words(target: Any, text: str) -> None:
    assert resolve_target(target, SCORES).text == text


@pytest.mark.parametrize(
    ("target", "categories", "handed", "text"),
    [
        ("argmax", (), None, ""),
        ("3", (), 3, "3"),
        ("+3", (), 3, "3"),
        ("-1", (), -1, "-1"),
        ("-1", ("a", "b"), -1, "-1"),
        ("3", ("a", "b"), 3, "3"),
        ("b", ("a", "b"), 1, "1 (b)"),
        ("B", ("a", "b"), 1, "1 (b)"),
        ("b, a", ("a", "b"), [1, 0], "1 (b), 0 (a)"),
        ("b,1", ("a", "b"), [1, 1], "1 (b), 1 (b)"),
        ([1, 2], (), [1, 2], "1, 2"),
        ((4,), (), 4, "4"),
        ("uniform", (), "uniform", "uniform"),
        ("uniform", ("a", "b"), "uniform", "uniform"),
        ("free words", (), "free words", "free words"),
        ("a, b", ("a, b", "c"), 0, "0 (a, b)"),
        (2.5, (), 2.5, "2.5"),
        (7, (), 7, "7"),
        (None, (), None, "None"),
        ([], (), [], "given list"),
        ([1.5, 2.0], (), [1.5, 2.0], "given list"),
        ([True], (), [True], "given list"),
        ({"a": 1}, (), {"a": 1}, "given dict"),
    ],
)
def test_a_function_gets_the_target_as_it_was_meant(target, categories, handed, text) -> None:
    found, label = target_for_function(target, categories)
    plain = found.tolist() if isinstance(found, Tensor) else found
    assert (plain, label) == (handed, text) and type(plain) is type(handed)
    if isinstance(found, Tensor):
        assert found.dtype is torch.int64


# Files


@pytest.mark.parametrize(
    ("word", "expected"),
    [("t.npy", True), ("T.NPY", True), ("a/b.safetensors", True), ("t.pt", True), ("t.pth", True),
     ("npy", False), ("t.npz", False), ("3", False), (3, False), (None, False)],
)  # fmt: skip
def test_files_of_targets_go_by_their_ending(word: Any, expected: bool) -> None:
    assert is_target_file(word) is expected


WAYS = {
    "t.npy": lambda path, t: np.save(path, t.numpy()),
    "t.pt": lambda path, t: torch.save(t, path),
    "t.pth": lambda path, t: torch.save({"x": t}, path),
    "t.safetensors": lambda path, t: save_file({"x": t}, path),
}
if not reads_pickles_safely():  # then refused: see tests/sources/test_files_of_torch_save.py
    del WAYS["t.pt"], WAYS["t.pth"]
OTHERS = [
    ("t.pt", {"a": SCORES, "b": SCORES}, "2 entries"),
    ("t.safetensors", {"a": SCORES, "b": SCORES + 1}, "2 entries"),
    ("t.pt", [SCORES], "list"),
    ("t.pt", {}, "0 entries"),
    ("t.pt", 3, "int"),
]


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("name", WAYS)
def test_every_kind_of_file_holds_a_target(tmp_path: Path, name: str, upper: bool) -> None:
    WAYS[name](tmp_path / name, SCORES)
    path = tmp_path / (name.upper() if upper else name)
    (tmp_path / name).rename(path)
    assert torch.equal(read_target(str(path)), SCORES)
    for given in (path, str(path)):
        found = resolve_target(given, SCORES)
        assert torch.equal(found.values, SCORES) and found.text == f"{path} (2x4)"
        handed, text = target_for_function(given)
        assert torch.equal(handed, SCORES) and text == f"{path} (2x4)"


@pytest.mark.parametrize(
    ("name", "value", "subject"), [other for other in OTHERS if other[0] in WAYS]
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, name, value, subject) -> None:
    (save_file if name == "t.safetensors" else torch.save)(value, tmp_path / name)
    with pytest.raises(LossError, match=f"contains {subject}"):
        read_target(str(tmp_path / name))


@pytest.mark.parametrize("name", [*WAYS, "img.png", "note.txt", "none.pt"])
def test_a_damaged_file_and_one_of_another_kind_are_refused_in_one_line(
    tmp_path: Path, name: str
) -> None:
    check_target("3")
    if name == "none.pt":
        with pytest.raises(LossError, match=name):
            check_target(str(tmp_path / name))
    else:
        (tmp_path / name).write_bytes(b"\x89PNG\r\n" if name == "img.png" else b"\x80no\nat all")
    with pytest.raises(LossError, match=name) as caught:
        resolve_target(str(tmp_path / name), SCORES)
    [first, *_] = str(caught.value).splitlines()
    assert name in first and first.endswith((".", "!", "?"))
    if name == "img.png":
        assert all(ending in caught.value.hint for ending in (".npy", ".safetensors", ".pt"))


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
        with pytest.raises(LossError, match=name):
            resolve_target(name, ROWS)
    assert not Path("ran").exists()
