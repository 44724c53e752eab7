"""Reductions compared with numpy, written by hand for each layout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from hookscope.errors import LayerError, RequestError
from hookscope.extraction.axes import infer_axes
from hookscope.extraction.channel_statistics import HISTOGRAM_EDGES
from hookscope.extraction.reducer import fit_components, largest_values, make_reducer
from hookscope.extraction.shard_writer import StorageCast, to_int8
from hookscope.specs.extract_options import parse_reduction, parse_storage
from tests.refusals import refused

IMAGE = (224, 224)
# Outputs of layers: class name, shape of a row, and its channels and positions in
# numpy, without and with a known image size.
MAPS = ("Conv2d", (6, 5, 5), (0, 2, 3, 1))  # to (N, H, W, C)
NHWC = ("Block", (7, 7, 24), (0, 1, 2, 3))
TOKENS = ("LayerNorm", (50, 8), (0, 1, 2))
SEQUENCE = ("Conv1d", (8, 50), (0, 2, 1))
VECTOR = ("Linear", (12,), (0, 1))
LAYOUTS = [MAPS, NHWC, TOKENS, SEQUENCE, VECTOR]


def made(word: str, type: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32):
    return make_reducer(
        parse_reduction(word), "a/output", shape, dtype, infer_axes(type, shape, IMAGE)
    )


def rows_of(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    return torch.randn(4, *shape, generator=torch.Generator().manual_seed(seed))


def in_numpy(rows: torch.Tensor, order: tuple[int, ...]) -> np.ndarray:
    """(N, P, C) in float64."""
    array = rows.double().numpy().transpose(order)
    return array.reshape(len(array), -1, array.shape[-1])


@pytest.mark.parametrize(("type", "shape", "order"), LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_mean_and_max_go_over_the_positions_or_over_all(type, shape, order, dtype) -> None:
    rows = (rows_of(shape) * 100).to(dtype)
    array = in_numpy(rows, order)
    for word, axis in (("mean", 1), ("mean:all", (1, 2))):
        found = made(word, type, shape, dtype)(rows)[""]
        assert found.dtype == (dtype if dtype == torch.float64 else torch.float32)
        np.testing.assert_allclose(found.numpy(), array.mean(axis), rtol=1e-6, atol=1e-5)
    for word, axis in (("max", 1), ("max:all", (1, 2))):
        found = made(word, type, shape, dtype)(rows)[""]
        assert found.dtype == dtype
        np.testing.assert_array_equal(found.double().numpy(), array.max(axis))


def test_the_mean_of_many_large_halves_neither_overflows_nor_loses_digits() -> None:
    rows = torch.full((1, 2, 200, 200), 60000.0, dtype=torch.float16)
    reducer = made("mean", "Conv2d", (2, 200, 200), torch.float16)
    assert reducer(rows)[""].tolist() == [[60000.0] * 2]


def test_cls_is_the_first_token_and_flatten_every_number_in_order() -> None:
    rows = rows_of((50, 8))
    assert torch.equal(made("cls", "LayerNorm", (50, 8))(rows)[""], rows[:, 0])
    maps = rows_of((6, 5, 5))
    assert torch.equal(made("flatten", "Conv2d", (6, 5, 5))(maps)[""], maps.reshape(4, 150))


@pytest.mark.parametrize(("type", "shape", "order"), LAYOUTS)
def test_topk_of_a_row_is_that_of_a_stable_sort(type, shape, order) -> None:
    rows = rows_of(shape).mul(3).round()  # with many equal values
    found = made("topk:5", type, shape)(rows)
    flat = rows.reshape(4, -1).numpy()
    expected = np.argsort(-flat, axis=1, kind="stable")[:, :5]
    np.testing.assert_array_equal(found[".index"].numpy(), expected)
    np.testing.assert_array_equal(found[""].numpy(), np.take_along_axis(flat, expected, 1))


def test_topk_over_space_is_taken_of_each_channel() -> None:
    rows = rows_of((6, 5, 5))
    found = made("topk:2:space", "Conv2d", (6, 5, 5))(rows)
    flat = rows.reshape(4, 6, 25).numpy()
    expected = np.argsort(-flat, axis=2, kind="stable")[..., :2]
    np.testing.assert_array_equal(found[".index"].numpy(), expected)
    assert found[".index"].dtype == torch.int32


def test_topk_takes_booleans() -> None:
    assert largest_values(torch.tensor([[[False, True, True]]]), 2)[1].tolist() == [[[1, 2]]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_topk_takes_minus_infinity_before_nan_and_both_zeros_for_one(dtype) -> None:
    nan, inf = float("nan"), float("inf")
    odd = torch.tensor([[[nan, -inf, -nan, -inf, -0.0, 0.0, -1.0, inf, 2.0]]], dtype=dtype)
    for count in range(1, 10):
        values, places = largest_values(odd, count)
        assert places.tolist() == [[[7, 8, 4, 5, 6, 1, 3, 0, 2][:count]]]
        assert values.isnan().tolist() == [[[location in (0, 2) for location in places[0, 0]]]]


ALL_WORDS = ["mean", "max", "mean:all", "flatten", "topk:3", "topk:2:space"]
ALL_WORDS += ["histogram", "histogram:space", "pca:2", "pca:2:space"]


@pytest.mark.parametrize("word", ALL_WORDS)
def test_of_no_rows_no_rows_are_kept(word) -> None:
    some, none = rows_of((6, 5, 5)), torch.empty(0, 6, 5, 5)
    first = made(word, "Conv2d", (6, 5, 5))
    first = replace(first, project=lambda vectors: vectors[:, :2])
    found = first(none)
    for name, tensor in first(some).items():
        assert (found[name].shape, found[name].dtype) == ((0, *tensor.shape[1:]), tensor.dtype)
    assert first.vectors(none).shape == (0, first.vectors(some).shape[1])
    values, scale = to_int8(none)
    assert (values.shape, scale.shape) == (none.shape, (0,))


@pytest.mark.parametrize(("type", "shape", "order"), LAYOUTS)
def test_histogram_counts_as_numpy_does(type, shape, order) -> None:
    rows = rows_of(shape) ** 5
    rows.view(-1)[:4] = torch.tensor([np.inf, -np.inf, np.nan, HISTOGRAM_EDGES[3]])
    edges = [-np.inf, *HISTOGRAM_EDGES, np.inf]
    found = made("histogram", type, shape)(rows)[""]
    for row, ours in zip(rows.numpy().reshape(4, -1), found.numpy(), strict=True):
        # numpy's last bin is closed, and an infinite bin does not include infinite values.
        sound = np.clip(row[~np.isnan(row)], -1e30, 1e30)
        np.testing.assert_array_equal(ours, np.histogram(sound, [-1e31, *edges[1:-1], 1e31])[0])


def test_the_components_are_those_of_sklearn_either_way_round() -> None:
    random = np.random.default_rng(0)
    for n, d in ((200, 12), (30, 90)):
        data = random.normal(size=(n, d)) * np.linspace(3, 0.5, d) + 5
        found = fit_components(torch.tensor(data, dtype=torch.float32), 4)
        theirs = PCA(4, svd_solver="full").fit(data)
        np.testing.assert_allclose(found.variance, theirs.explained_variance_, rtol=1e-4)
        np.testing.assert_allclose(found.mean, theirs.mean_, rtol=1e-5)
        signs = np.sign((found.components.numpy() * theirs.components_).sum(1, keepdims=True))
        np.testing.assert_allclose(found.components, signs * theirs.components_, atol=1e-4)
        ours = found(torch.tensor(data, dtype=torch.float32)).numpy()
        np.testing.assert_allclose(ours, theirs.transform(data) * signs.T, atol=1e-3)


def test_directions_in_which_nothing_differs_are_zero() -> None:
    line = torch.arange(10.0)[:, None] * torch.ones(1, 30)
    found = fit_components(line, 3)
    assert found.components[1:].abs().max() == 0
    np.testing.assert_allclose(found.components[0], np.full(30, 30**-0.5), rtol=1e-6)


def test_pca_over_space_keeps_the_map_and_projects_its_channels() -> None:
    rows = rows_of((6, 5, 5))
    one = made("pca:2:space", "Conv2d", (6, 5, 5))
    components = fit_components(one.vectors(rows), 2)
    found = replace(one, project=components)(rows)[""]
    assert found.shape == (4, 2, 5, 5)
    array = rows.numpy().transpose(0, 2, 3, 1).reshape(-1, 6)
    expected = PCA(2, svd_solver="full").fit(array.astype(float)).transform(array)
    np.testing.assert_allclose(
        np.abs(found.numpy().transpose(0, 2, 3, 1).reshape(-1, 2)), np.abs(expected), atol=1e-4
    )


MIXER, PAD = ("Mixer", (49, 8), None), ("Pad", (4, 0), None)
UNFIT = [("cls", MAPS), ("cls", VECTOR), ("cls", MIXER), ("mean:tokens", MAPS), ("mean", PAD)]
UNFIT += [("max:space", TOKENS), ("mean:space", VECTOR), ("topk:13", VECTOR)]
UNFIT += [("topk:26:space", MAPS), ("pca:7:space", MAPS)]


@pytest.mark.parametrize(("word", "layer"), UNFIT)
def test_what_does_not_fit_a_layer_is_refused_by_its_name(word, layer) -> None:
    with pytest.raises(LayerError, match=f"{word} .* a/output"):
        made(word, layer[0], layer[1])


def test_complex_values_are_kept_whole_or_not_at_all() -> None:
    made("flatten", "FFT", (4,), torch.complex64)
    with pytest.raises(LayerError, match="complex"):
        made("max", "FFT", (4,), torch.complex64)


# A wrong reduction, and a word of the hint.
WRONG = {"maen": "mean", "qqq": "cls", "topk": "topk:10", "topk:0": "topk:10", "pca:x": "pca:10"}
WRONG |= {"mean:token": "tokens", "mean:all:all": "", "cls:all": "cls", "mean:": "tokens"}


@pytest.mark.parametrize("word", WRONG)
def test_a_wrong_word_is_refused_with_near_names(word) -> None:
    with refused(RequestError, message=word.partition(":")[0], hint=WRONG[word]):
        parse_reduction(word)


def test_contradictions_are_refused() -> None:
    with pytest.raises(RequestError, match="--reduce"):
        parse_storage("mean", None, True)
    with pytest.raises(RequestError, match="'float15'"):
        parse_storage(None, "float15", False)


@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 1e30])
def test_int8_is_off_by_half_a_step_at_most(size) -> None:
    rows = rows_of((6, 5, 5)) * size
    rows[1] = 0
    values, scale = to_int8(rows)
    assert (values.dtype, scale.shape) == (torch.int8, (4,))
    back = values.double() * scale.double().view(4, 1, 1, 1)
    bound = scale.double().view(4, 1, 1, 1) / 2 * (1 + 1e-6)
    assert ((back - rows.double()).abs() <= bound).all()
    assert (rows.abs().amax((1, 2, 3)) / 127 == scale).all()


def test_values_that_a_smaller_dtype_does_not_hold_are_counted() -> None:
    inf, nan = float("inf"), float("nan")
    halves = StorageCast("float16")
    kept = halves("a", torch.tensor([[1.0, 70000.0, inf]]))["a"]
    assert kept.isinf().tolist() == [[False, True, True]]
    assert "1 values" in halves.warning("a") and "float16" in halves.warning("a")
    eighths = StorageCast("int8")
    assert eighths("a", torch.tensor([[1.0, inf, nan, -inf]]))["a"].tolist() == [
        [127, 127, 0, -127]
    ]
    assert "3 values" in eighths.warning("a")
    eighths = StorageCast("int8")  # and values beyond single precision become the largest
    rows = torch.tensor([[1e300, -1e300, 2.0], [1.0, 2.0, 4.0]], dtype=torch.float64)
    kept = eighths("a", rows)
    assert kept["a"].tolist() == [[127, -127, 0], [32, 64, 127]]
    assert kept["a.scale"].tolist()[0] == pytest.approx(torch.finfo(torch.float32).max / 127)
    assert "2 values" in eighths.warning("a")
