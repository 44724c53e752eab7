"""An explanation as a capture: the maps, the images they lie over, and what is told of them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hookscope.analysis.cams.cam_run import CamResult, CamRun
from hookscope.analysis.cams.explained_image import displayable_image
from hookscope.hooks.capture import Capture
from hookscope.hooks.registry import what_of
from hookscope.results.module_tree import ROOT
from hookscope.specs.record_kinds import ATTRIBUTION, CAM, INPUT


def build_capture(asked: CamRun, found: CamResult, upsample: str) -> tuple[Capture, dict[str, Any]]:
    """Return the tensors of an explanation, and what its metadata say under ``cam``."""
    capture = Capture()
    capture.output, capture.coverage = found.output, found.coverage
    model: dict[str, Any] = {
        "module": ROOT,
        "type": type(asked.prepared.module).__name__,
        "call": 1,
    }
    large = found.maps
    if found.spot is not None:
        spot = found.spot
        origin: dict[str, Any] = {
            "module": spot.layer.name,
            "type": spot.layer.type,
            "call": spot.call,
        }
        capture.put(found.maps, **origin, what="cam", kind=CAM, aliases=spot.layer.aliases)
        large = upsampled(found.maps, asked.size, upsample)
    if found.attribution is not None:
        what = f"{what_of(INPUT, asked.path)}.attribution"
        capture.put(found.attribution, **model, what=what, kind=ATTRIBUTION)
    capture.put(large, **model, what="cam", kind=CAM)
    shown, how = displayable_image(asked.image, asked.prepared.recipe)
    capture.put(shown, **model, what="image", kind=INPUT)
    told = {
        "method": asked.method.name,
        "formula": asked.method.formula,
        "paper": asked.method.paper,
        "target": asked.score.text,
        **_layer_entry(found, upsample),
        **found.told,
        "image": how,
        "images": _image_entries(asked, found, large),
    }
    return capture, told


def upsampled(maps: Tensor, size: tuple[int, int], how: str) -> Tensor:
    """Return maps (N, h, w) at the images' size, bilinear (pixel centres aligned) or nearest."""
    corners = {"align_corners": False} if how == "bilinear" else {}
    return F.interpolate(maps.unsqueeze(1), size, mode=how, **corners).squeeze(1)


def _layer_entry(found: CamResult, upsample: str) -> dict[str, Any]:
    spot = found.spot
    if spot is None or spot.grid is None:
        return {}
    channels = spot.shape[1 if spot.grid.layout == "NCHW" else -1]
    return {
        "layer": spot.layer.name,
        "type": spot.layer.type,
        "call": spot.call,
        "grid": [spot.grid.height, spot.grid.width],
        "channels": channels,
        "layout": spot.grid.layout,
        "prefix": spot.grid.prefix,
        "upsampling": upsample,
    }


def _image_entries(asked: CamRun, found: CamResult, large: Tensor) -> list[dict[str, Any]]:
    """One entry for each image: its class, the class's score, and where the map peaks."""
    sources = asked.prepared.sources
    words = [str(source["word"]) for source in sources]
    scores = asked.score.each(found.output).tolist()
    probabilities = asked.score.probabilities(found.output)
    assert asked.score.classes is not None
    entries = []
    for n, classes in enumerate(asked.score.classes):
        word = words[n] if len(words) == len(found.maps) else str(n + 1)
        entries.append(
            {
                "word": word,
                **_class_entry(classes, asked.prepared.loaded.categories),
                "score": scores[n],
                "probability": probabilities[n],
                "peak": _peak(found.maps[n]),
                "pixel": _peak(large[n]),
                "largest": float(found.maps[n].max()),
            }
        )
    return entries


def _class_entry(classes: Tensor, categories: tuple[str, ...]) -> dict[str, Any]:
    """The class of an image; None where it differs from position to position."""
    distinct = classes.unique().tolist()
    if len(distinct) > 1:
        return {"index": None, "label": None}
    index = distinct[0]
    return {"index": index, "label": categories[index] if index < len(categories) else None}


def _peak(one: Tensor) -> list[int] | None:
    """Row and column of the largest entry, the first of equal ones; None for zeros and NaN."""
    if not float(one.max()) > 0:
        return None
    row, column = divmod(int(torch.argmax(one)), one.shape[1])
    return [row, column]
