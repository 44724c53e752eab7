"""Which maps a tensor is made of, and what is left of them at another size, against numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hookscope.errors import RequestError
from hookscope.specs.plot_options import PlotOptions
from hookscope.specs.tensor_key import WHOLE
from hookscope.stores.capture_file import open_capture
from hookscope.views.images.feature_maps import (
    FeatureMaps,
    channel_strengths,
    check_channels,
    choose_channels,
    read_feature_maps,
    resize_maps,
)
from tests.views.text.samples import captured


def maps_of(
    tmp_path: Path,
    tensor: Tensor,
    type: str = "Conv2d",
    kind: str = "output",
    image: tuple[int, int] | None = None,
    **chosen: Any,
) -> FeatureMaps:
    arguments = [{"name": "0", "shape": [1, 3, *image]}] if image else []
    captured({"a": tensor}, type, kind, arguments=arguments).save(tmp_path / "a")
    index, options = chosen.pop("index", WHOLE), PlotOptions(**chosen)
    return read_feature_maps(open_capture(tmp_path / "a"), f"a/{kind}", index, options)


def ramp(*shape: int) -> Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


def test_an_image_layers_maps_are_the_first_samples_channels(tmp_path: Path) -> None:
    tensor = ramp(2, 20, 3, 5)
    found = maps_of(tmp_path, tensor)
    assert np.array_equal(found.values, tensor[0, :16].numpy())
    assert (found.channels, found.total, found.single) == (tuple(range(16)), 20, ("sample 0 of 2",))


def test_channels_are_those_named_or_chosen(tmp_path: Path) -> None:
    tensor = ramp(1, 6, 2, 2) - 12
    found = maps_of(tmp_path, tensor, channels=(4, 0))
    assert found.channels == (4, 0)
    assert np.array_equal(found.values, tensor[0, [4, 0]].numpy())
    assert maps_of(tmp_path, tensor, by="strength", count=2).channels == (0, 5)
    with pytest.raises(RequestError, match="no channel 6"):
        maps_of(tmp_path, tensor, channels=(6,))


@pytest.mark.parametrize(
    ("type", "shape", "index", "dim", "expected", "channels"),
    [
        ("Conv2d", (4, 3, 5), (...,), None, lambda t: t, 4),  # without a batch
        ("LayerNorm", (2, 7, 5), (...,), None, lambda t: t[:1], 0),  # tokens by channels
        ("Conv1d", (2, 7, 5), (...,), None, lambda t: t[:1], 0),  # channels by positions
        ("LayerNorm", (2, 7, 5), (...,), 2, lambda t: t.permute(2, 0, 1), 5),
        ("Linear", (2, 7), (...,), None, lambda t: t[None], 0),
        ("Linear", (7,), (...,), None, lambda t: t[None, None], 0),
        ("Linear", (2, 7), (1,), None, lambda t: t[1][None, None], 0),
        ("Conv2d", (2, 4, 3, 5), (1,), None, lambda t: t[1], 4),
        ("Conv2d", (2, 4, 3, 5), (1, 2), None, lambda t: t[1, 2][None], 0),
        ("Conv2d", (2, 4, 3, 5), (slice(1, 2),), None, lambda t: t[1], 4),
        ("SwinTransformerBlock", (2, 3, 5, 4), (...,), -1, lambda t: t[0].permute(2, 0, 1), 4),
        ("Linear", (2, 3, 5, 4), (...,), None, lambda t: t[0].permute(2, 0, 1), 4),
        ("Conv3d", (2, 4, 3, 5, 6), (...,), None, lambda t: t[0, :, 1], 4),
        ("Block", (2, 3, 5, 6, 4), (...,), -1, lambda t: t[0, 1].permute(2, 0, 1), 4),
        ("Conv3d", (2, 4, 3, 5, 6), (0, slice(None), 1), None, lambda t: t[0, :, 1], 4),
        ("Conv3d", (2, 4, 3, 5, 6), (slice(None), 1), None, lambda t: t[0, 1], 3),
    ],
)
def test_what_is_a_map_follows_from_the_shape(
    tmp_path: Path, type: str, shape: Any, index: Any, dim: Any, expected: Any, channels: int
) -> None:
    tensor = ramp(*shape)
    found = maps_of(tmp_path, tensor, type, index=index, dim=dim)
    assert np.array_equal(found.values, expected(tensor).numpy())
    assert len(found.channels) == channels


def test_what_makes_no_maps_is_refused(tmp_path: Path) -> None:
    for tensor in (ramp(), ramp(1, 1, 2, 3, 4, 5), ramp(0, 3, 4, 4), ramp(1, 3, 0, 4)):
        with pytest.raises(RequestError, match="cannot be drawn"):
            maps_of(tmp_path, tensor)
    with pytest.raises(RequestError, match="no dimension 4"):
        maps_of(tmp_path, ramp(1, 2, 3, 4), dim=4)
    for dim in (0, 1):  # the samples are no maps, and a matrix has no two sides beside channels
        with pytest.raises(RequestError, match="cannot be drawn"):
            maps_of(tmp_path, ramp(*(2, 3, 4, 5)[: 4 - 2 * dim]), dim=dim)


def test_channels_that_lie_last_are_found_by_the_aspect_of_the_input_and_told(
    tmp_path: Path,
) -> None:
    tensor = ramp(2, 3, 5, 4)
    found = maps_of(tmp_path, tensor, "Block", image=(30, 50))
    assert np.array_equal(found.values, tensor[0].permute(2, 0, 1).numpy())
    assert "3x5" in found.note and "5x4" in found.note
    overruled = maps_of(tmp_path, tensor, "Block", image=(30, 50), dim=1)
    assert np.array_equal(overruled.values, tensor[0].numpy()) and not overruled.note
    assert not maps_of(tmp_path, tensor, "Block", image=(30, 30)).note
    assert maps_of(tmp_path, tensor, "Linear").note.endswith("as Linear has them")


def test_gradients_of_a_convolutions_weight_are_its_filters(tmp_path: Path) -> None:
    tensor = ramp(9, 3, 2, 2)
    found = maps_of(tmp_path, tensor, kind="param.grad", image=(20, 20), count=4)
    assert np.array_equal(found.values, tensor[:4, 0].numpy())
    assert (found.noun, found.total, found.single) == ("filters", 9, ("input channel 0 of 3",))


def test_complex_maps_are_magnitudes(tmp_path: Path) -> None:
    tensor = torch.complex(ramp(1, 1, 2, 2), ramp(1, 1, 2, 2))
    assert np.allclose(maps_of(tmp_path, tensor).values, tensor[0].abs().numpy())


def test_shrunk_maps_are_means_of_their_parts() -> None:
    maps = np.random.default_rng(0).normal(size=(3, 8, 12))
    expected = maps.reshape(3, 2, 4, 3, 4).mean(axis=(2, 4))
    assert np.allclose(resize_maps(maps, 2, 3), expected)
    uneven = resize_maps(maps, 3, 12)
    assert np.allclose(uneven[:, 1], maps[:, 2:5].mean(axis=1))


def test_enlarged_maps_repeat_their_entries() -> None:
    maps = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    assert np.array_equal(resize_maps(maps, 6, 8), maps.repeat(2, axis=1).repeat(2, axis=2))
    assert np.array_equal(resize_maps(maps, 3, 4), maps)


def test_what_is_not_finite_is_never_averaged_away() -> None:
    maps = np.zeros((1, 4, 4))
    maps[0, 0, 0], maps[0, 3, 3] = np.nan, np.inf
    small = resize_maps(maps, 2, 2)
    assert np.isnan(small[0, 0, 0]) and np.isinf(small[0, 1, 1]) and small[0, 0, 1] == 0
    maps[0, 2, 2] = -np.inf
    assert np.isnan(resize_maps(maps, 1, 1)).all()


# Which channels


def test_by_index_come_the_first() -> None:
    array = np.zeros((2, 5, 3))
    assert choose_channels(array, 1, "index", 3) == (0, 1, 2)
    assert choose_channels(array, 1) == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_by_strength_come_those_of_the_largest_mean_size(dim: int) -> None:
    array = np.random.default_rng(0).normal(size=(4, 5, 6))
    order = [np.abs(part).mean() for part in np.moveaxis(array, dim, 0)]
    expected = sorted(range(len(order)), key=lambda i: -order[i])[:3]
    assert choose_channels(array, dim, "strength", 3) == tuple(expected)


def test_among_equals_the_first_comes_first() -> None:
    assert choose_channels(np.array([[1.0, -2.0, 2.0, 1.0]]), 1, "strength", 4) == (1, 2, 0, 3)


def test_one_nan_or_infinity_does_not_hide_how_strong_the_rest_is() -> None:
    array = np.array([[1.0, np.nan], [3.0, 3.0], [np.inf, 2.0], [np.nan, np.nan]])
    assert channel_strengths(array, 0).tolist() == [1.0, 3.0, 2.0, 0.0]


def test_half_precision_does_not_overflow() -> None:
    array = np.full((2, 9, 9), 60_000, np.float16)
    assert channel_strengths(array, 0).tolist() == [float(np.float16(60_000))] * 2


def test_at_random_the_seed_decides() -> None:
    array = np.zeros((1, 64))
    first = choose_channels(array, 1, "random", 8, seed=1)
    assert first == choose_channels(array, 1, "random", 8, seed=1)
    assert first != choose_channels(array, 1, "random", 8, seed=2)
    assert len(set(first)) == 8 and list(first) == sorted(first) and max(first) < 64
    assert choose_channels(array[:, :3], 1, "random", 8) == (0, 1, 2)


def test_complex_channels_are_told_by_their_magnitude() -> None:
    assert choose_channels(np.array([[1 + 0j, 0 - 3j]]), 1, "strength", 1) == (1,)


def test_a_channel_that_is_not_there_is_refused() -> None:
    check_channels((0, 4), 5, "a/output")
    with pytest.raises(RequestError, match="channel 5"):
        check_channels((0, 5), 5, "a/output")
