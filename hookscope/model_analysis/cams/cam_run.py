"""One run of ``cam``: the method by its name, and its maps as a capture with metadata."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.hooks.capture import Capture
from hookscope.hooks.module_call import RecordKey, what_of
from hookscope.model_analysis.cams.cam_input import (
    UPSAMPLING,
    CamAlgorithm,
    CamInput,
    CamResult,
    displayable_image,
)
from hookscope.model_analysis.cams.input_methods import (
    GradientTimesInput,
    GuidedBackprop,
    IntegratedGradients,
    Occlusion,
    Saliency,
)
from hookscope.model_analysis.cams.layer_methods import (
    AttentionRollout,
    EigenCam,
    GradCam,
    GradCamPlusPlus,
    HiResCam,
    LayerCam,
    ScoreCam,
)
from hookscope.model_analysis.cams.strongest_unit import strongest_units
from hookscope.results.metadata import CamLayer, CamMetadata, CamObject, CamUnit
from hookscope.specs.cam_methods import METHODS
from hookscope.specs.command_options import CamOptions
from hookscope.specs.patterns import ROOT
from hookscope.specs.tensor_key import ATTRIBUTION, CAM, INPUT

CLASSES: dict[str, type[CamAlgorithm]] = {
    "gradcam": GradCam,
    "gradcam++": GradCamPlusPlus,
    "hirescam": HiResCam,
    "layercam": LayerCam,
    "eigencam": EigenCam,
    "scorecam": ScoreCam,
    "rollout": AttentionRollout,
    "guided": GuidedBackprop,
    "saliency": Saliency,
    "integrated": IntegratedGradients,
    "gradxinput": GradientTimesInput,
    "occlusion": Occlusion,
}


def run_cam(inputs: CamInput, options: CamOptions) -> tuple[Capture, CamMetadata]:
    """Run a method; return its maps, and the entries of the metadata under ``cam``."""
    method, nearest = options.by, options.upsample == "nearest"
    if method == "integrated":
        explainer: CamAlgorithm = IntegratedGradients(options.steps, options.baseline)
    elif method == "occlusion":
        explainer = Occlusion(options.patch, options.baseline)
    else:
        explainer = CLASSES[method]()
    units: list[CamUnit] = []
    with explain_forward_errors(inputs.prepared):
        if options.receptive is not None:
            units = strongest_units(inputs, options.receptive)
        result = explainer.attribute(inputs)
    maps = result.maps
    if result.candidate is not None:
        maps = inputs.at_input(maps, nearest=nearest)
    image, origin = displayable_image(inputs.image, inputs.prepared.recipe)
    entry = METHODS[method]
    images = _image_entries(inputs, result, maps)
    for one, unit in zip(images, units, strict=False):
        one["strongest"] = unit
        if inputs.kind == "image":
            (top, bottom), (left, right) = unit["field"]
            one["box"] = [left, top, right + 1, bottom + 1]
    metadata = {
        "method": entry.name,
        "formula": entry.formula,
        "paper": entry.paper,
        "target": inputs.score.text,
        **_layer_entry(result, "nearest" if nearest else UPSAMPLING[len(inputs.size)]),
        **result.metadata,
        **({"scores": inputs.score.part} if inputs.score.part else {}),
        "input": inputs.kind,
        "image": origin,
        "images": images,
    }
    return _capture_of(inputs, result, maps, image), cast(CamMetadata, metadata)


def _capture_of(inputs: CamInput, result: CamResult, maps: Tensor, image: Tensor) -> Capture:
    """Return the map on the layer's grid or the attribution, the maps and the images."""
    capture = Capture()
    capture.output, capture.coverage = result.output, result.coverage
    model: dict[str, Any] = {
        "module": ROOT,
        "type": type(inputs.prepared.module).__name__,
        "call": 1,
    }
    if result.candidate is not None:
        key = RecordKey(result.candidate.layer, result.candidate.call, "cam", CAM)
        capture.put(result.maps, **key.origin())
    if result.attribution is not None:
        what = f"{what_of(INPUT, inputs.path)}.attribution"
        capture.put(result.attribution, **model, what=what, kind=ATTRIBUTION)
    capture.put(maps, **model, what="cam", kind=CAM)
    capture.put(image, **model, what=inputs.kind, kind=INPUT)
    return capture


def _layer_entry(result: CamResult, upsample: str) -> CamLayer:
    candidate = result.candidate
    if candidate is None or candidate.grid is None:
        return {}
    grid = candidate.grid
    return {
        "layer": candidate.layer.name,
        "type": candidate.layer.type,
        "call": candidate.call,
        **({"part": ".".join(candidate.path)} if candidate.path else {}),
        "grid": list(grid.sides),
        "channels": candidate.shape[1 if grid.layout[1] == "C" else -1],
        "layout": grid.layout,
        "prefix": grid.prefix,
        "upsampling": upsample,
    }


def _image_entries(inputs: CamInput, result: CamResult, maps: Tensor) -> list[CamObject]:
    """One entry for each image: its class, the class's score, and where the map peaks."""
    specs = [str(source["spec"]) for source in inputs.prepared.sources]
    scores = inputs.score.each(result.output).tolist()
    probabilities = inputs.score.probabilities(result.output)
    assert inputs.score.classes is not None
    indices = map(_class_of, inputs.score.classes)
    names = inputs.prepared.loaded.categories
    entries = [
        {
            "spec": specs[n] if len(specs) == len(result.maps) else str(n + 1),
            "index": index,
            "label": None if index is None or index >= len(names) else names[index],
            "score": scores[n],
            "probability": probabilities[n],
            "peak": _peak(result.maps[n]),
            "pixel": _peak(maps[n]),
            "largest": float(result.maps[n].max()),
            **inputs.score.entry(),
        }
        for n, index in enumerate(indices)
    ]
    return cast(list[CamObject], entries)


def _class_of(classes: Tensor) -> int | None:
    """The class of an image; None where it differs from position to position."""
    distinct: list[int] = classes.unique().tolist()
    return distinct[0] if len(distinct) == 1 else None


def _peak(values: Tensor) -> list[int] | None:
    """The position of the largest entry, the first of equal ones; None for zeros and NaN."""
    if not float(values.max()) > 0:
        return None
    return [int(index) for index in np.unravel_index(int(torch.argmax(values)), values.shape)]
