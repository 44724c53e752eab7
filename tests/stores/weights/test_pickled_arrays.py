"""Arrays of numpy in files of ``torch.save``, against what ``torch.load`` makes of them."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hookscope.errors import WeightsFileError
from hookscope.files.plain_pickle import GlobalName, OpaqueObject
from hookscope.sources.pickled_model import open_trusted_weights
from hookscope.stores.weights.open_weights import open_weights
from hookscope.stores.weights.torch_pickle import ArrayBuilder
from tests.memory import memory_below

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", ">f4", ">i2"),
)


def arrays() -> dict[str, Any]:
    """An array of each dtype, and of each order of its values."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((2, 3, 4)) * 100
    base = values.astype(np.float32)
    return {
        **{f"of {dtype}": abs(values).astype("f4").astype(dtype) for dtype in DTYPES},
        "column-major": np.asfortranarray(base),
        "transposed": base.T,
        "sliced": base[:, ::2, 1:3],
        "reversed": base[::-1],
        "scalar": np.array(3.5),
        "empty": np.zeros((0, 3), np.float32),
        "single": np.array([7], np.int64),
    }


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("old", [False, True])
def test_arrays_have_the_values_that_torch_loads(tmp_path: Path, protocol: int, old: bool) -> None:
    path = tmp_path / "a.pth"
    torch.save(
        {"state": arrays()},
        path,
        pickle_protocol=protocol,
        _use_new_zipfile_serialization=not old,
    )
    loaded = torch.load(path, weights_only=False)["state"]
    weights = open_weights(path)
    assert set(weights) == set(loaded)
    for name, array in loaded.items():
        native = np.dtype(array.dtype).newbyteorder("=")
        assert weights.tensors[name].dtype == native.name
        assert weights.tensors[name].shape == array.shape
        found = weights[name]
        assert (found.dtype.newbyteorder("="), found.shape) == (native, array.shape)
        assert np.array_equal(found, array), name
        blocks = [block.copy() for block in weights.blocks(name)]
        assert np.array_equal(np.concatenate([*blocks, []]), array.reshape(-1)), name
        part = (slice(1, None),) if array.ndim else ()
        assert np.array_equal(weights.tensor(name, part), array[part]), name
    assert not weights.notes


def test_an_array_that_is_named_twice_is_tied(tmp_path: Path) -> None:
    array = np.ones((2, 2), np.float32)
    torch.save({"a": array, "b": array, "c": array.copy()}, tmp_path / "a.pth")
    weights = open_weights(tmp_path / "a.pth")
    assert [tensor.tied_to for tensor in weights.tensors.values()] == ["", "a", ""]
    assert weights.parameters == 8


class Labels(np.ndarray):
    """A class of its own."""


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (np.array([{1}, None]), "numbers"),
        (np.array(["a", "b"]), "numbers"),
        (np.zeros(2, [("x", "f4"), ("y", "i4")]), "numbers"),
        (np.ones(2, np.longdouble), "numbers"),
        (np.zeros(2, "M8[s]"), "numbers"),
        (np.ones(2).view(Labels), "class"),
    ],
)
def test_other_arrays_are_named(tmp_path: Path, array: Any, kind: str) -> None:
    torch.save({"numbers": np.ones(3), "other": array}, tmp_path / "a.pth")
    weights = open_weights(tmp_path / "a.pth")
    assert list(weights) == ["numbers"]
    assert "'other'" in weights.notes[-1] and kind in weights.notes[-1]


def test_arrays_beside_weights_do_not_change_what_the_weights_are(tmp_path: Path) -> None:
    state = {"fc.weight": torch.ones(2, 3), "fc.scale": np.ones(2, np.float32)}
    checkpoint = {"model": state, "anchors": {"sizes": np.arange(4)}, "mean": np.zeros(3)}
    path = tmp_path / "a.pth"
    torch.save(checkpoint, path)
    assert list(open_weights(path)) == ["fc.weight", "fc.scale"]
    assert open_weights(path).part == "model"
    assert list(open_weights(f"{path}#anchors")) == ["sizes"]
    assert list(open_weights(f"{path}#all")) == [
        *("model.fc.weight", "model.fc.scale", "anchors.sizes", "mean"),
    ]


class Built:
    """An object, so that the file needs ``--trust``."""


def test_a_trusted_file_has_the_same_arrays(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"state": arrays(), "built": Built(), "objects": np.array([{1}])}, path)
    plain, trusted = open_weights(path), open_trusted_weights(str(path))
    assert list(plain) == list(trusted)
    assert plain.tensors["of >f4"].shape == trusted.tensors["of >f4"].shape
    for name in plain:
        assert plain.tensors[name].dtype == trusted.tensors[name].dtype, name
        assert plain[name].shape == trusted[name].shape, name
        assert plain[name].tobytes() == trusted[name].tobytes(), name


class Crafted:
    """Pickles as a call of numpy's function with chosen arguments and state."""

    def __init__(self, shape: object, data: object, code: str = "f4") -> None:
        self.state = (1, shape, np.dtype(code), False, data)

    def __reduce__(self) -> Any:
        function = np.ones(1).__reduce__()[0]
        return function, (np.ndarray, (0,), b"b"), self.state


@pytest.mark.parametrize(
    ("shape", "data", "message"),
    [
        ((3,), b"12345678", "shape"),
        ((1 << 40, 1 << 40), b"1234", "sizes"),
        ((-1,), b"", "sizes"),
        (("a",), b"1234", "sizes"),
        ((1 << 40, 0), b"1", "shape"),
    ],
)
def test_a_damaged_array_is_an_error_in_a_sentence(tmp_path: Path, shape, data, message) -> None:
    torch.save({"w": Crafted(shape, data)}, tmp_path / "a.pth")
    with pytest.raises(WeightsFileError, match=message):
        open_weights(tmp_path / "a.pth")


@pytest.mark.parametrize(
    ("shape", "data"), [([2], b"12345678"), (None, b""), ((2,), [1, 2]), ((2,), None)]
)
def test_a_state_of_another_form_is_no_array(tmp_path: Path, shape: object, data: object) -> None:
    torch.save({"w": Crafted(shape, data), "v": torch.ones(1)}, tmp_path / "a.pth")
    try:
        assert list(open_weights(tmp_path / "a.pth")) == ["v"]
    except WeightsFileError as error:
        assert "sizes" in error.message


class Encoded:
    """Pickles as a call of ``_codecs.encode`` with any arguments."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments

    def __reduce__(self) -> Any:
        import _codecs

        return _codecs.encode, self.arguments


@pytest.mark.parametrize(
    "arguments", [("\u1234", "latin1"), ("a", "rot13"), (b"a", "latin1"), ("a",), ("a", ["latin1"])]
)
def test_other_encodings_are_not_computed(tmp_path: Path, arguments: tuple[object, ...]) -> None:
    path = tmp_path / "a.pth"
    torch.save({"w": torch.ones(1), "e": Encoded(*arguments)}, path)
    assert list(open_weights(path)) == ["w"]


SIZE = 1 << 20
TEXT, BUFFER = "\x01" * SIZE, bytearray(b"\x01" * SIZE)


class EncodedText:
    """Bytes as protocol 2 writes them: a call that encodes a text."""

    def __reduce__(self) -> Any:
        return codecs.encode, (TEXT, "latin1")


class OfText:
    """An array of a text that the pickle has once."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def __reduce__(self) -> Any:
        make = np._core.multiarray._reconstruct
        state = (1, self.shape, np.dtype("u1"), False, EncodedText())
        return make, (np.ndarray, (0,), b"b"), state


class OfBuffer(OfText):
    """An array of a buffer that the pickle has once."""

    def __reduce__(self) -> Any:
        return np._core.numeric._frombuffer, (BUFFER, np.dtype("u1"), self.shape, "C")

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()


@pytest.mark.parametrize("kind", [OfText, OfBuffer])
def test_arrays_that_share_their_bytes_take_their_memory_once(
    tmp_path: Path, kind: type[OfText]
) -> None:
    content = {f"a{n}": kind((SIZE,)) for n in range(200)}
    torch.save(content, tmp_path / "a.pth", pickle_protocol=5 if kind is OfBuffer else 2)
    with memory_below(20 * SIZE):
        weights = open_weights(tmp_path / "a.pth")
    assert weights.parameters == SIZE
    assert np.array_equal(weights["a199"], np.ones(SIZE, np.uint8))


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("kind", [OfText, OfBuffer])
def test_arrays_that_claim_more_than_their_pickle_has_are_refused(
    tmp_path: Path, kind: type[OfText], old: bool
) -> None:
    torch.save(
        {f"a{n}": kind((2**n, SIZE >> n)) for n in range(2)},
        tmp_path / "a.pth",
        pickle_protocol=5 if kind is OfBuffer else 2,
        _use_new_zipfile_serialization=not old,
    )
    with pytest.raises(WeightsFileError, match="more values"):
        open_weights(tmp_path / "a.pth")


def test_arrays_that_read_shared_bytes_in_another_order_are_not_tied(tmp_path: Path) -> None:
    data = bytes(range(250)) * 4
    content = {"a": Crafted((500,), data, "<u2"), "b": Crafted((500,), data, ">u2")}
    torch.save({**content, "room": "x" * 2000}, tmp_path / "a.pth", pickle_protocol=4)
    weights = open_weights(tmp_path / "a.pth")
    assert [tensor.tied_to for tensor in weights.tensors.values()] == ["", ""]


def test_the_content_of_an_array_is_computed_once() -> None:
    build = ArrayBuilder()
    array = build("numpy._core.multiarray._reconstruct", (GlobalName("numpy.ndarray"), (0,)))
    array.state = (1, (2,), OpaqueObject("numpy.dtype", ("u1",)), False, bytearray(b"ab"))
    array.state[2].state = (3, "|", None, None, None, -1, -1, 0)
    assert array.content is array.content
    assert array.content.data is array.state[4]


def test_arrays_of_one_byte_are_not_tied(tmp_path: Path) -> None:
    torch.save({"a": np.ones(1, np.uint8), "b": np.ones(1, np.uint8)}, tmp_path / "a.pth")
    weights = open_weights(tmp_path / "a.pth")
    assert [tensor.tied_to for tensor in weights.tensors.values()] == ["", ""]
