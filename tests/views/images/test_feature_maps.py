"""Which maps a tensor is made of, and what is left of them at another size, against numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hookscope.errors import RequestError
from hookscope.hooks.capture import Capture
from hookscope.specs.plot_options import PlotOptions
from hookscope.specs.tensor_key import WHOLE
from hookscope.stores.capture_file import open_capture
from hookscope.views.images.feature_maps import FeatureMaps, read_feature_maps, resize_maps


def maps_of(
    tmp_path: Path,
    tensor: Tensor,
    type: str = "Conv2d",
    kind: str = "output",
    image: tuple[int, int] | None = None,
    **chosen: Any,
) -> FeatureMaps:
    capture = Capture()
    capture.put(tensor, module="a", type=type, call=1, what="output", kind=kind)
    capture.metadata["arguments"] = [{"name": "0", "shape": [1, 3, *image]}] if image else []
    capture.save(tmp_path / "a")
    index, options = chosen.pop("index", WHOLE), PlotOptions(**chosen)
    return read_feature_maps(open_capture(tmp_path / "a"), "a/output", index, options)


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
    assert found.note == "channels last: 3x5 has the aspect ratio of the input, 5x4 does not"
    overruled = maps_of(tmp_path, tensor, "Block", image=(30, 50), dim=1)
    assert np.array_equal(overruled.values, tensor[0].numpy()) and not overruled.note
    assert not maps_of(tmp_path, tensor, "Block", image=(30, 30)).note
    assert maps_of(tmp_path, tensor, "Linear").note == "channels last, as Linear has them"


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
