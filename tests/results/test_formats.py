"""The ending of a recording's file determines its format: safetensors, npy or npz."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import hookscope
from hookscope.errors import RequestError, StoreError
from hookscope.files.output_path import recording_ending
from hookscope.hooks.capture import Capture
from hookscope.stores.capture_file import open_capture
from tests.refusals import refused

pytestmark = pytest.mark.filterwarnings(
    "ignore:ComplexHalf|torch.quantize", "ignore:.*quantize_per"
)

DTYPES = [
    *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(torch.uint16, torch.uint32, torch.uint64),
]
WIDENED = {
    **dict.fromkeys((torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2), np.float32),
    **dict.fromkeys((torch.float8_e4m3fnuz, torch.float8_e8m0fnu), np.float32),
    torch.complex32: np.complex64,
}


def kept(**tensors: Tensor) -> Capture:
    capture = Capture()
    for name, tensor in tensors.items():
        capture.put(tensor, module=name, type="T", call=1, what="output", kind="output")
    return capture


def values(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    source = torch.Generator().manual_seed(3)
    return (torch.randn(shape, generator=source).abs() * 3).to(dtype)


@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4), (1,)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_npy_and_npz_hold_the_same_bits(tmp_path: Path, dtype, shape) -> None:
    tensor = values(dtype, shape)
    size = kept(a=tensor).save(tmp_path / "a.npy")
    assert size == (tmp_path / "a.npy").stat().st_size
    found = np.load(tmp_path / "a.npy", allow_pickle=False)
    kept(a=tensor, b=tensor[..., :1] if shape else tensor).save(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as archive:
        assert archive.files == ["a/output", "b/output"]
        both = [found, archive["a/output"]]
    for array in both:
        assert (array.shape, array.dtype) == (shape, tensor.numpy().dtype)
        assert array.tobytes() == tensor.numpy().tobytes()


@pytest.mark.parametrize("dtype", WIDENED, ids=str)
def test_what_numpy_lacks_is_widened_without_a_change_of_value(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, dtype
) -> None:
    tensor = values(dtype, (4, 5))
    with caplog.at_level("INFO", logger="hookscope"):
        kept(a=tensor).save(tmp_path / "a.npz")
    [array] = np.load(tmp_path / "a.npz").values()
    assert array.dtype == WIDENED[dtype]
    assert torch.equal(
        torch.from_numpy(array).to(dtype).view(torch.uint8), tensor.view(torch.uint8)
    )
    assert str(dtype).removeprefix("torch.") in caplog.text


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_note_on_widened_tensors_names_the_first_and_counts_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    halves = {f"m{i}": torch.ones(2, dtype=torch.bfloat16) for i in range(count)}
    with caplog.at_level("INFO", logger="hookscope"):
        size = kept(plain=torch.ones(2), **halves).save(tmp_path / "a.npz")
    [note] = caplog.messages
    more = f" and {count - 1} more" if count > 1 else ""
    assert note.startswith(f"m0/output{more}: ") and "bfloat16" in note and "float32" in note
    assert size == (tmp_path / "a.npz").stat().st_size


def test_sparse_quantized_and_conjugate_tensors_are_written_by_value(tmp_path: Path) -> None:
    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    quantized = torch.quantize_per_tensor(dense, 0.5, 0, torch.quint8)
    numbers = torch.tensor([1 + 2j]).conj()
    capture = kept(sparse=dense.to_sparse(), quantized=quantized, view=dense.t(), conj=numbers)
    capture.save(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as found:
        assert np.array_equal(found["sparse/output"], dense)
        assert np.array_equal(found["quantized/output"], dense)
        assert np.array_equal(found["view/output"], dense.t())
        assert found["conj/output"] == 1 - 2j


def test_a_dtype_that_numpy_cannot_hold_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    tensor = torch.zeros(2, 2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    kept(a=torch.ones(1)).save(tmp_path / "a.npy")
    before = (tmp_path / "a.npy").read_bytes()
    with refused(StoreError, "float4_e2m1fn_x2", hint="safetensors"):
        kept(a=tensor).save(tmp_path / "a.npy")
    assert (tmp_path / "a.npy").read_bytes() == before
    assert os.listdir(tmp_path) == ["a.npy"]


@pytest.mark.parametrize("count", [0, 2, 20])
def test_npy_takes_one_tensor_alone(tmp_path: Path, count: int) -> None:
    capture = kept(**{f"a{i}": torch.ones(1) for i in range(count)})
    named = f"{count} tensors: a0/output, a1/output" if count else "no tensors"
    with refused(RequestError, named, hint=".npz"):
        capture.save(tmp_path / "a.npy")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["a.txt", "a.pt", "a.npy.gz", "a.safetensor", "resnet18.layer3"])
def test_another_ending_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError, match=name):
        kept(a=torch.ones(1)).save(tmp_path / name)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["a", "a.safetensors", "A.SAFETENSORS"])
def test_safetensors_is_the_format_where_the_name_says_it_or_nothing(tmp_path, name: str) -> None:
    kept(a=torch.ones(1)).save(tmp_path / name)
    with safe_open(tmp_path / name, framework="pt") as file:
        assert list(file.keys()) == ["a/output"]


def test_the_same_arrays_give_the_same_bytes(tmp_path: Path, monkeypatch) -> None:
    capture = kept(a=torch.ones(3), b=torch.zeros(2, dtype=torch.bfloat16))
    capture.save(tmp_path / "a.npz")
    for info in zipfile.ZipFile(tmp_path / "a.npz").infolist():
        assert info.date_time == (1980, 1, 1, 0, 0, 0)
    capture.save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_names_that_an_archive_cannot_hold(tmp_path: Path) -> None:
    capture = kept(**{"a\0b": torch.ones(1), "c": torch.ones(2)})
    capture.save(tmp_path / "a.npz")
    assert np.load(tmp_path / "a.npz").files == [r"a\x00b/output", "c/output"]
    for names in (["a\0", r"a\x00"], ["n" * 70_000]):
        with pytest.raises(StoreError, match=r"b\.npz"):
            kept(**{name: torch.ones(1) for name in names}).save(tmp_path / "b.npz")
    assert os.listdir(tmp_path) == ["a.npz"]


def saved(tmp_path: Path) -> Path:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).bfloat16()
    with hookscope.record(model) as capture:
        model(torch.ones(2, 4, dtype=torch.bfloat16))
    extra = kept(pair=torch.tensor([1 + 2j], dtype=torch.complex128), none=torch.ones(0, 3))
    for record in extra.records:
        capture.put(
            extra[record.key], module=record.module, type="T", call=1, what="output", kind="output"
        )
    capture.save(tmp_path / "a.safetensors")
    return tmp_path / "a.safetensors"


def test_export_writes_tensors_of_a_capture_as_arrays(tmp_path: Path) -> None:
    file = saved(tmp_path)
    whole = hookscope.load(file)
    done = hookscope.export(file, tmp_path / "all.npz")
    with np.load(done.path) as found:
        assert found.files == list(whole)
        for key, tensor in whole.items():
            wide = tensor.float() if tensor.dtype is torch.bfloat16 else tensor
            assert found[key].dtype == wide.numpy().dtype
            assert found[key].tobytes() == wide.numpy().tobytes()
    assert [row["key"] for row in done.to_json()["keys"]] == list(whole)
    hookscope.export(file, tmp_path / "one.npy", layers="0")
    assert np.array_equal(np.load(tmp_path / "one.npy"), whole["0/output"].float())
    hookscope.export(file, tmp_path / "part.npz", layers=["0/output[0,1:]", "2"])
    with np.load(tmp_path / "part.npz") as found:
        assert found.files == ["0/output[0,1:]", "2/output"]
        assert np.array_equal(found["0/output[0,1:]"], whole["0/output"][0, 1:].float())


def test_export_copies_some_tensors_of_a_capture_to_a_capture(tmp_path: Path) -> None:
    file = saved(tmp_path)
    whole = hookscope.load(file)
    calls: list[tuple[int, int]] = []
    hookscope.export(file, tmp_path / "some.safetensors", layers=["pair", "1", "none"])
    some = hookscope.load(tmp_path / "some.safetensors")
    assert list(some) == ["1/output", "pair/output", "none/output"]
    for key in some:
        assert some[key].dtype is whole[key].dtype
        assert torch.equal(some[key], whole[key])
        one, other = (next(r for r in c.records if r.key == key) for c in (some, whole))
        assert one.stats == other.stats
    assert open_capture(tmp_path / "some.safetensors").metadata == open_capture(file).metadata
    hookscope.export(file, tmp_path / "all.npz", progress=lambda *done: calls.append(done))
    assert calls[-1] == (len(whole), len(whole))


@pytest.mark.parametrize(
    ("name", "layers", "named"),
    [
        ("b.npy", (), "6 tensors"),
        ("b.parquet", "0", "features"),
        ("b.safetensors", "0/output[0]", "0/output"),
        ("b.txt", (), "b.txt"),
        ("b.npz", "nothing", "nothing"),
        ("a.safetensors", (), "overwritten"),
    ],
)
def test_what_cannot_be_exported_of_a_capture(tmp_path: Path, name, layers, named) -> None:
    file = saved(tmp_path)
    before = file.read_bytes()
    with pytest.raises(RequestError, match=named):
        hookscope.export(file, tmp_path / name, layers=layers)
    assert file.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.safetensors"]


@pytest.mark.parametrize("ending", ["png", "PDF"])
def test_a_picture_as_the_output_of_a_recording_leads_to_plot(ending: str) -> None:
    with pytest.raises(RequestError) as caught:
        recording_ending(Path(f"x.{ending}"))
    assert caught.value.hint.endswith(f"hookscope plot FILE.safetensors LAYER -o x.{ending}")
