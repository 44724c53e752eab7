"""Pictures of weights: what is drawn of large tensors, and which picture fits a tensor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import hookscope
from hookscope.errors import RequestError
from hookscope.file_analysis.weight_reader import WeightReader
from hookscope.stores.weights.open_weights import open_weights
from hookscope.views.images import weight_values
from hookscope.views.images.plot_choice import TensorPart
from hookscope.views.images.weight_values import read_curve, read_matrix

RNG = np.random.default_rng(0)
TENSORS = {
    "a.kernels.weight": RNG.standard_normal((20, 3, 5, 5)).astype(np.float32),
    "a.line.weight": RNG.standard_normal((6, 4, 3)).astype(np.float32),
    "fc.weight": RNG.standard_normal((50, 70)).astype(np.float16),
    "fc.bias": RNG.standard_normal(900).astype(np.float32),
    "scale": np.array(2.0, np.float32),
    "nothing": np.zeros((0, 4), np.float32),
    "int8": RNG.integers(-128, 128, (30, 30)).astype(np.int8),
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "a.safetensors"
    save_file(TENSORS, path)
    return path


def part(file: Path, name: str, index=(...,)) -> tuple[WeightReader, TensorPart]:
    reader = WeightReader(open_weights(file))
    return reader, TensorPart(reader.record(name), index)


@pytest.mark.parametrize(
    ("keys", "kind", "shows"),
    [
        ("a.kernels", "filters", "a.kernels.weight (20x3x5x5): filters 0-15 of 20, in colour"),
        ("a.line.weight", "filters", "a.line.weight (6x4x3): filters 0-5 of 6"),
        ("fc.weight", "filters", "fc.weight (50x70)"),
        ("fc.weight[3]", "curve", "fc.weight[3] (70)"),
        ("fc.bias", "curve", "fc.bias (900)"),
        ("a.kernels.weight[:,0,2,2]", "curve", "a.kernels.weight[:,0,2,2] (20)"),
        ("scale", "hist", "scale (a single number)"),
        ("nothing", "hist", "nothing (0x4)"),
        ("fc", "hist", "fc.weight (50x70)"),
        ((), "flow", "6 layers"),
    ],
)
def test_the_picture_fits_the_tensor(file: Path, keys, kind: str, shows: str) -> None:
    drawing = hookscope.plot(file, keys)
    assert drawing.kind == kind
    assert any(text.endswith(shows) for text in drawing.shows)


def test_an_overview_has_a_point_for_each_tensor(file: Path) -> None:
    axes = hookscope.plot(file).figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(
        dict.fromkeys(name.rpartition(".")[0] or name for name in open_weights(file).tensors)
    )


@pytest.mark.parametrize("index", [(...,), (slice(40, 3, -1),), (slice(None), slice(2, 69, 3))])
def test_a_large_matrix_keeps_the_largest_entry_of_each_cell(
    file: Path, index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_values, "_AT_ONCE", 100)  # several reads
    matrix = read_matrix(*part(file, "fc.weight", index), side=16)
    values = TENSORS["fc.weight"][index]
    tall, wide = (-(-n // 16) for n in values.shape)
    assert (matrix.shape, matrix.cell) == (values.shape, (tall, wide))
    for i, row in enumerate(matrix.values):
        for j, value in enumerate(row):
            cell = values[i * tall : (i + 1) * tall, j * wide : (j + 1) * wide]
            assert value in cell
            assert abs(value) == np.abs(cell).max()


def test_a_cell_with_nan_is_nan_and_a_small_matrix_is_whole(tmp_path: Path) -> None:
    values = np.arange(30.0).reshape(5, 6)
    values[4, 1] = np.nan
    save_file({"m": values}, tmp_path / "m.safetensors")
    whole = read_matrix(*part(tmp_path / "m.safetensors", "m"))
    np.testing.assert_array_equal(whole.values, values)
    small = read_matrix(*part(tmp_path / "m.safetensors", "m"), side=3)
    np.testing.assert_array_equal(small.values, [[7, 9, 11], [19, 21, 23], [np.nan, 27, 29]])


def test_the_least_int8_has_the_largest_magnitude(file: Path) -> None:
    values = TENSORS["int8"]
    matrix = read_matrix(*part(file, "int8"), side=1)
    assert abs(int(matrix.values[0, 0])) == np.abs(values.astype(int)).max()


def test_a_long_curve_is_the_range_of_each_cell(file: Path) -> None:
    curve = read_curve(*part(file, "fc.bias"), points=100)
    cells = TENSORS["fc.bias"].reshape(100, 9)
    assert curve.cell == 9
    np.testing.assert_array_equal(curve.low, cells.min(axis=1))
    np.testing.assert_array_equal(curve.high, cells.max(axis=1))


@pytest.mark.parametrize(
    ("keys", "options", "shows"),
    [
        ((), {}, "a.kernels.weight (20x3x5x5): filters 0-15 of 20, in colour"),
        ("fc", {}, "fc.weight (50x70)"),
        ("a.kernels", {"channels": [3, 1]}, "filters 3, 1 of 20, in colour"),
    ],
)
def test_filters_take_the_weight_of_a_layer(file: Path, keys, options, shows: str) -> None:
    assert hookscope.filters(file, *filter(None, [keys]), **options).shows[0].endswith(shows)


@pytest.mark.parametrize(
    ("draw", "keys", "options", "named"),
    [
        (hookscope.filters, "fc.bias", {}, r"fc\.bias"),
        (hookscope.filters, "a", {}, "2 tensors"),
        (hookscope.filters, "fd", {}, "'fd'"),
        (hookscope.filters, "fc", {"partial": True}, "partial"),
        (hookscope.plot, (), {"kind": "maps"}, "maps"),
        (hookscope.plot, "fc.weight", {"dim": 1}, "dim"),
        (hookscope.plot, "a.kernels", {"channels": [20]}, "20"),
        (hookscope.plot, "a.kernels", {}, "1,500 entries"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    file: Path, draw, keys, options, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_values, "MAX_KERNELS", 1000)
    with pytest.raises(RequestError, match=named) as caught:
        draw(file, keys, **options)
    if named == "1,500 entries":
        assert "a.kernels.weight[0]" in caught.value.hint
