"""Tensors from numpy, safetensors, torch and CSV files, and generated tensors."""

from __future__ import annotations

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from sklearn.datasets import load_iris
from torch import Tensor, nn

import hookscope
from hookscope.errors import HookscopeError, InputError
from hookscope.inputs.batch import build_batch
from hookscope.sources.model_loader import wrap
from tests.refusals import refused


class Pair(nn.Module):
    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        return ids


ANY = wrap(nn.Identity())
PAIR = wrap(Pair())
IRIS = load_iris()


def value_of(word: object, model: Any = ANY, **more: Any) -> Any:
    return build_batch(model, str(word), **more).value


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "int64", "uint8", "bool", ">f4", "complex64"]
)
def test_an_array_saved_by_numpy_is_read_as_it_is(tmp_path: Path, dtype: str) -> None:
    array = np.random.default_rng(0).integers(0, 2, (2, 3)).astype(dtype)
    np.save(tmp_path / "a.npy", array)
    batch = build_batch(ANY, str(tmp_path / "a.npy"))
    assert np.array_equal(batch.value.numpy(), array)
    assert batch.value.dtype == torch.from_numpy(array.astype(array.dtype.newbyteorder("="))).dtype
    digest = hashlib.sha256((tmp_path / "a.npy").read_bytes()).hexdigest()
    assert batch.sources[0]["sha256"] == digest
    assert batch.sources[0]["shape"] == "2x3"


def test_a_fortran_array_and_one_number_keep_their_values(tmp_path: Path) -> None:
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.save(tmp_path / "f.npy", array)
    np.save(tmp_path / "one.npy", np.float32(3))
    assert np.array_equal(value_of(tmp_path / "f.npy").numpy(), array)
    assert value_of(tmp_path / "one.npy").item() == 3


def test_one_array_of_an_archive_is_the_argument(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", anything=np.ones(3))
    assert torch.equal(value_of(tmp_path / "one.npz"), torch.ones(3, dtype=torch.float64))
    np.savez_compressed(tmp_path / "two.npz", a=np.ones(3), b=np.zeros(2))
    assert value_of(f"{tmp_path}/two.npz:b").tolist() == [0, 0]
    with refused(InputError, "'a'", hint="input"):
        value_of(tmp_path / "two.npz")
    with refused(InputError, "'c'", hint="a, b"):
        value_of(f"{tmp_path}/two.npz:c")


def test_several_arrays_are_arguments_by_their_names_or_their_order(tmp_path: Path) -> None:
    ids, mask = np.arange(4), np.ones(4)
    np.savez(tmp_path / "named.npz", mask=mask, ids=ids)
    batch = build_batch(PAIR, str(tmp_path / "named.npz"))
    assert batch.value["ids"].tolist() == [0, 1, 2, 3]
    assert batch.value["mask"].tolist() == [1, 1, 1, 1]
    assert [entry["part"] for entry in batch.sources] == ["mask", "ids"]
    np.savez(tmp_path / "ordered.npz", ids, mask)
    args, kwargs = value_of(tmp_path / "ordered.npz", PAIR)
    assert [t.tolist() for t in args] == [ids.tolist(), mask.tolist()]
    assert kwargs == {}


def test_pickled_arrays_are_never_opened(tmp_path: Path) -> None:
    class Marked:
        def __reduce__(self) -> Any:
            return open, (str(tmp_path / "ran"), "w")

    np.save(tmp_path / "a.npy", np.array([Marked()], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "a.npz", a=np.array([Marked()], dtype=object))
    (tmp_path / "b.npy").write_bytes(pickle.dumps(Marked()))
    torch.save(Marked(), tmp_path / "a.pt")
    for name in ("a.npy", "a.npz", "b.npy", "a.pt"):
        with refused(InputError):
            value_of(tmp_path / name)
    assert not (tmp_path / "ran").exists()


def test_what_torch_saved_is_what_the_model_is_called_with(tmp_path: Path) -> None:
    one, two = torch.arange(3), torch.ones(3)
    for name, content in {
        "tensor": one,
        "tuple": (one, two),
        "dict": {"ids": one, "mask": two},
        "list": [one, two],
    }.items():
        torch.save(content, tmp_path / f"{name}.pt")
    assert torch.equal(value_of(tmp_path / "tensor.pt", PAIR), one)
    args, _ = value_of(tmp_path / "tuple.pt", PAIR)
    assert torch.equal(args[1], two)
    assert torch.equal(value_of(tmp_path / "dict.pt", PAIR)["mask"], two)
    assert torch.equal(value_of(tmp_path / "list.pt")[1], two)
    assert torch.equal(value_of(f"{tmp_path}/dict.pt:mask"), two)
    whole = build_batch(PAIR, f"ids={tmp_path}/dict.pt").value
    assert torch.equal(whole["ids"]["mask"], two)
    torch.save({0: one, 1: two}, tmp_path / "numbered.pt")
    assert torch.equal(value_of(f"{tmp_path}/numbered.pt:1"), two)


def test_weights_and_models_are_no_input(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "w.pt")
    with pytest.raises(InputError, match="'weight'"):
        value_of(tmp_path / "w.pt")
    torch.save(nn.Linear(2, 2), tmp_path / "module.pt")
    with pytest.raises(InputError, match="pickled"):
        value_of(tmp_path / "module.pt")
    with pytest.raises(InputError, match="TorchScript"):
        value_of("sample_models/digits_scripted.pt")


def test_safetensors_of_another_library_are_read_by_key(tmp_path: Path) -> None:
    ids, mask = np.arange(4), np.ones(4, dtype=np.float16)
    safetensors.numpy.save_file({"ids": ids, "mask": mask}, tmp_path / "x.safetensors")
    assert value_of(f"{tmp_path}/x.safetensors:mask").dtype is torch.float16
    assert value_of(tmp_path / "x.safetensors", PAIR)["ids"].tolist() == ids.tolist()


def test_an_activation_that_was_captured_is_an_input(tmp_path: Path) -> None:
    shot = hookscope.capture("sample_models/digits.py:trained")
    path = shot.save(tmp_path / "shot.safetensors") and tmp_path / "shot.safetensors"
    key = next(key for key in shot if key.startswith("conv1/"))
    assert torch.equal(value_of(f"{path}:{key}"), shot[key])
    with pytest.raises(InputError, match="name one"):
        value_of(path)


def test_a_table_of_another_library_gives_a_batch_of_rows(tmp_path: Path) -> None:
    header = ",".join(IRIS.feature_names)
    np.savetxt(tmp_path / "iris.csv", IRIS.data, delimiter=",", header=header, comments="")
    expected = torch.from_numpy(IRIS.data.astype("float32"))
    found = value_of(tmp_path / "iris.csv")
    assert found.dtype is torch.float32
    assert torch.equal(found, expected)
    np.savetxt(tmp_path / "bare.tsv", IRIS.data, delimiter="\t")
    assert torch.equal(value_of(tmp_path / "bare.tsv"), expected)
    assert torch.equal(value_of(f"{tmp_path}/iris.csv:0-1,3"), expected[:, [0, 1, 3]])
    name = IRIS.feature_names[2]
    assert torch.equal(value_of(f"{tmp_path}/iris.csv:{name}"), expected[:, [2]])


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("a;b\n1;2\n\n3;4\n", [[1, 2], [3, 4]]),
        ("1|2\n3|4", [[1, 2], [3, 4]]),
        ("x\n1\n2\n", [[1], [2]]),
        ('\ufeff"a","b"\r\n"1e3",-.5\r\n', [[1000, -0.5]]),
        ("1, 2\n3, 4\n", [[1, 2], [3, 4]]),
        ("1e99\n", [[float("inf")]]),
    ],
)
def test_separators_and_headers_are_told_apart(tmp_path: Path, text: str, rows: list) -> None:
    (tmp_path / "t.csv").write_bytes(text.encode())
    assert value_of(tmp_path / "t.csv").tolist() == rows


# A table, the place of what is no number, and the repair.
NO_NUMBERS = [
    ("a,b\n1,2\n3,setosa\n", "line 3, column 'b'", "columns"),
    ("1,2\n3,\n", "line 2, column 1", ":0-3"),
    ("1,2\n3,1_0\n", "'1_0'", ""),
    ("1;2,5\n3;4,5\n", "'2,5'", "decimal point"),
    ("1,2\n3,4,5\n", "line 2", "comma"),
    ("5.1,setosa\n4.9,setosa\n", "line 1, column 1: 'setosa'", ":0-3"),
    ("1,NA\n2,3\n", "line 1, column 1: 'NA'", ":0-3"),
    ("a,b\n", "no rows", "a, b"),
    ("\n\n", "no rows", ""),
    ('1,"2\n', "table", ""),
    ("1,2\0\n", "", ""),
]


@pytest.mark.parametrize(("text", "place", "hint"), NO_NUMBERS)
def test_a_table_that_holds_no_numbers_is_refused_with_the_place(
    tmp_path: Path, text: str, place: str, hint: str
) -> None:
    (tmp_path / "t.csv").write_text(text)
    with refused(InputError, message=place, hint=hint):
        value_of(tmp_path / "t.csv")


def test_made_tensors_follow_shape_and_seed() -> None:
    expected = torch.randn(2, 3, generator=torch.Generator().manual_seed(4))
    assert torch.equal(value_of("random:2x3", seed=4), expected)
    assert torch.equal(value_of("random:2x3", seed=4), build_batch(ANY, shape=(2, 3), seed=4).value)
    assert value_of("zeros:2").tolist() == [0, 0]
    assert value_of("ones:1x2").tolist() == [[1, 1]]
    whole = value_of("ints:1000:-2-3")
    assert whole.dtype is torch.int64
    assert sorted(set(whole.tolist())) == [-2, -1, 0, 1, 2]
    both = build_batch(PAIR, ["ids=random:9", "mask=random:9"]).value
    assert not torch.equal(both["ids"], both["mask"])


def test_what_does_not_fit_into_memory_is_refused() -> None:
    with pytest.raises(InputError, match="memory"):
        value_of("zeros:99999999x99999999")


def test_several_files_of_one_place_make_one_batch(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((2, 3), "f4"))
    torch.save(torch.zeros(1, 3), tmp_path / "b.pt")
    batch = build_batch(ANY, [str(tmp_path / "a.npy"), str(tmp_path / "b.pt")])
    assert batch.value.tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 0]]
    assert [entry["shape"] for entry in batch.sources] == ["2x3", "1x3"]
    with pytest.raises(InputError, match="2x4"):
        build_batch(ANY, [str(tmp_path / "a.npy"), "random:2x4"])
    with pytest.raises(InputError, match="image and numpy"):
        build_batch(ANY, ["img.png", str(tmp_path / "a.npy")])


def test_choices_for_images_are_refused_with_tensors(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(3))
    with pytest.raises(InputError, match="--size"):
        build_batch(ANY, str(tmp_path / "a.npy"), size=8)
    with pytest.raises(InputError, match="shape"):
        build_batch(ANY, str(tmp_path / "a.npy"), shape=(3,))


def test_a_file_of_another_kind_than_its_name_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(Path("img.png").read_bytes())
    with pytest.raises(HookscopeError, match="an image"):
        value_of(tmp_path / "a.npy")
    buffer = io.BytesIO()
    np.save(buffer, np.ones(2))
    (tmp_path / "array").write_bytes(buffer.getvalue())
    assert value_of(tmp_path / "array").tolist() == [1, 1]
