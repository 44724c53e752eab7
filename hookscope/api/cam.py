"""Explain the score of a class by a heat map over the image."""

from __future__ import annotations

from typing import Annotated

from hookscope.api.public import NO_TEXTS, PLAIN_RUN, public
from hookscope.errors import RequestError
from hookscope.execution.prepare import prepare
from hookscope.execution.provenance import describe_run
from hookscope.files.progress import Progress
from hookscope.hooks.capture import Capture
from hookscope.model_analysis.cams.cam_input import CamInput
from hookscope.model_analysis.cams.cam_run import run_cam
from hookscope.model_analysis.cams.score_gradients import ClassScore
from hookscope.specs.command_options import CamOptions
from hookscope.specs.onnx_limits import check_onnx_cam
from hookscope.specs.request import InputRequest, LayerSelection, ModelRequest, Request
from hookscope.specs.run_options import RunOptions


@public
def cam(
    options: CamOptions,
    input: Annotated[InputRequest, NO_TEXTS],
    model: ModelRequest,
    run: Annotated[RunOptions, PLAIN_RUN],
    *,
    progress: Progress | None = None,
) -> Capture:
    """Explain the score of a class by a heat map over each image.

    The score is the target's logit, without softmax; for a segmentation, its sum over the positions
    at which the target is that class.

    Args:
        input: image files, or the arguments of the model; the first floating-point tensor of four
            dimensions (N, C, H, W) is taken as the images.
        progress: called with the number of runs done and the total, by ``scorecam``,
            ``integrated`` and ``occlusion``.

    Returns:
        A capture with ``<layer>/cam``, float32 or wider, (N, h, w), the map on the layer's grid;
        ``./cam``, (N, H, W), at the images' size; and ``./image``, uint8 (N, 3, H, W), the images.
        Methods at the image return ``./input.0.attribution``, signed, (N, C, H, W), instead of
        ``<layer>/cam``. Maps are never negative. ``metadata["cam"]`` has the layer, the grid, and
        for every image the class, its score and probability, and the peak of the map.
        ``hookscope.model_analysis.cams.overlay.save_overlay`` draws it; ``rollout`` has ``layers``,
        the names of all layers with attention, and ``tokens``, for each image those whose rows are
        its map.

    Raises:
        RequestError: the model has no such layer, no images or no class scores; or an option does
            not apply to the method.
        LossError: the target does not fit the output.
        ForwardError: the model raised, forward or backward.

    Example:
        >>> import hookscope
        >>> shot = hookscope.cam("resnet18", shape=(1, 3, 64, 64), target=3)
        >>> list(shot), tuple(shot["layer4/cam"].shape)
        (['layer4/cam', './cam', './image'], (1, 2, 2))
    """
    layer = options.layer
    selection = LayerSelection(() if layer is None else layer)
    request = Request("cam", model, selection, input, run)
    check_onnx_cam(model.source, options.by)
    chosen = request.chosen(options)
    chosen.pop("layers", None)  # it is the option ``layer``
    prepared = prepare(request)
    if layer is not None and len(prepared.layers) > 1:
        names = ", ".join(matched.name for matched in prepared.layers[:4])
        raise RequestError(
            f"{layer!r} matches {len(prepared.layers)} layers: {names}, ...",
            "cam explains one layer: give its full name.",
        )
    score = ClassScore(options.target)
    inputs = CamInput(prepared, score, layer_given=layer is not None, progress=progress)
    capture, metadata = run_cam(inputs, options)
    capture.metadata = describe_run("cam", prepared, chosen) | {"cam": metadata}
    return capture
