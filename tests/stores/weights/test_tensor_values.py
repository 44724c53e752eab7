"""Values with any strides are read from a file in windows, as numpy sees them in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from hookscope.errors import WeightsFileError
from hookscope.stores.weights import tensor_values
from hookscope.stores.weights.tensor_location import StridedLocation, span_of
from hookscope.stores.weights.tensor_values import StridedValues

NUMBERS = np.arange(20_000, dtype="<f4")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("numbers") / "numbers.bin"
    NUMBERS.tofile(file)
    return file


@given(
    dims=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 60)), max_size=4),
    start=st.integers(0, 50),
    windows=st.sampled_from([(16, 64, 8), (1 << 12, 1 << 10, 1 << 6), (1 << 22, 1 << 26, 1 << 16)]),
    data=st.data(),
)
def test_any_view_is_read_as_numpy_has_it(path: Path, dims, start, windows, data) -> None:
    shape = tuple(length for length, _ in dims)
    strides = tuple(step for _, step in dims)
    assert span_of(shape, strides) + start <= len(NUMBERS)
    expected = as_strided(NUMBERS[start:], shape, [4 * step for step in strides])
    with pytest.MonkeyPatch.context() as patch:
        for name, size in zip(("WINDOW", "_SCATTERED_WINDOW", "_SMALL_SPAN"), windows, strict=True):
            patch.setattr(tensor_values, name, size)
        values = StridedValues(StridedLocation(str(path), 4 * start, "float32", shape, strides))
        blocks = [block.copy() for block in values.blocks()]
        assert b"".join(block.tobytes() for block in blocks) == expected.tobytes()
        whole = values.read((...,))
        assert whole.shape == shape
        assert np.array_equal(whole, expected)
        entries = st.one_of(st.integers(-7, 6), st.slices(7))
        index = data.draw(st.lists(entries, max_size=len(shape)).map(tuple))
        try:
            part = expected[index]
        except IndexError:
            with pytest.raises(IndexError):
                values.read(index)
        else:
            assert np.array_equal(values.read(index), part)
            assert values.read(index).shape == np.shape(part)


def test_blocks_are_of_the_asked_size(path: Path) -> None:
    location = StridedLocation(str(path), 0, "float32", (20_000,))
    blocks = StridedValues(location, window=4000).blocks()
    assert [len(block) for block in blocks] == [1000] * 20


def test_a_dtype_that_numpy_cannot_read_is_an_error_for_its_values_only(path: Path) -> None:
    for dtype, count in (("float4_e2m1fn_x2", 4), ("float6_e3m2", 3)):
        values = StridedValues(StridedLocation(str(path), 0, dtype, (4,)))
        with pytest.raises(WeightsFileError, match=rf"{dtype} in .* cannot be read"):
            values.blocks()
        with pytest.raises(WeightsFileError, match=rf"{dtype} in .* cannot be read"):
            values.read((0,))
        stored = b"".join(block.tobytes() for block in values.stored())
        assert stored == path.read_bytes()[:count]


def test_a_file_that_is_gone_is_an_error(tmp_path: Path) -> None:
    values = StridedValues(StridedLocation(str(tmp_path / "gone"), 0, "float32", (4,)))
    with pytest.raises(WeightsFileError, match="cannot be read"):
        values.read((...,))
    with pytest.raises(WeightsFileError, match="cannot be read"):
        list(values.blocks())
