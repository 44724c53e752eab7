"""Builds the request of a command from the values of its options, before torch is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from hookscope.specs.attribution_options import AttributeOptions
from hookscope.specs.command_options import (
    AblateOptions,
    CamOptions,
    CaptureOptions,
    CheckOptions,
    GradcheckOptions,
    GradsOptions,
    LensOptions,
    StepOptions,
    SweepOptions,
)
from hookscope.specs.early_stop_checks import check_early_stop
from hookscope.specs.extract_options import ExtractOptions
from hookscope.specs.intervention_spec import Interventions
from hookscope.specs.model_spec import ONNX
from hookscope.specs.onnx_limits import check_onnx_cam, check_onnx_ops
from hookscope.specs.request import (
    InputRequest,
    LayerSelection,
    LossRequest,
    ModelRequest,
    Request,
)
from hookscope.specs.run_options import RunOptions

Part = TypeVar("Part")

# The options of a command besides the parts of a request.
OPTIONS: Mapping[str, type] = {
    "ablate": AblateOptions,
    "attribute": AttributeOptions,
    "cam": CamOptions,
    "capture": CaptureOptions,
    "check": CheckOptions,
    "extract": ExtractOptions,
    "gradcheck": GradcheckOptions,
    "grads": GradsOptions,
    "lens": LensOptions,
    "step": StepOptions,
    "sweep": SweepOptions,
}


def build_request(command: str, values: Mapping[str, Any]) -> Request:
    """Return the request that the options of ``command`` make."""
    options: object = None
    if command in OPTIONS:
        options = build_part(OPTIONS[command], values)  # for its checks; the API makes its own
    model = build_part(ModelRequest, values)
    if command == "cam":
        check_onnx_cam(model.source, values["by"])
        selection = LayerSelection(() if values["layer"] is None else values["layer"])
    else:
        selection = build_part(LayerSelection, values)
    request = Request(
        command,
        model,
        selection,
        build_part(InputRequest, values),
        build_part(RunOptions, values),
        build_part(Interventions, values),
        build_part(LossRequest, values) if "loss" in values else None,
    )
    if isinstance(options, CaptureOptions):
        check_onnx_ops(model.source == ONNX, options.ops)
        check_early_stop(request, options)
    return request


def build_part(part: type[Part], values: Mapping[str, Any]) -> Part:
    """Return a part of a request: its fields have the names of the options."""
    names = [field.name for field in fields(part) if field.name in values]  # type: ignore[arg-type]
    return part(**{name: values[name] for name in names})
