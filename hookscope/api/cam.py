"""Explain the score of a class by a heat map over the image."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hookscope.errors import RequestError
from hookscope.execution.prepare import prepare
from hookscope.execution.provenance import describe_run
from hookscope.files.progress import Progress
from hookscope.hooks.capture import Capture
from hookscope.model_analysis.cams.cam_input import CamInput
from hookscope.model_analysis.cams.cam_run import run_cam
from hookscope.model_analysis.cams.score_gradients import ClassScore
from hookscope.specs.cam_methods import DEFAULT_METHOD, UPSAMPLINGS
from hookscope.specs.choices import DEFAULT_MODEL
from hookscope.specs.command_options import CamOptions
from hookscope.specs.onnx_limits import check_onnx_cam
from hookscope.specs.request import InputRequest, LayerSelection, ModelRequest, Request
from hookscope.specs.run_options import RunOptions


def cam(
    model: str | os.PathLike[str] | nn.Module | torch.export.ExportedProgram = DEFAULT_MODEL,
    *,
    by: str = DEFAULT_METHOD,
    layer: str | None = None,
    target: Any = "argmax",
    upsample: str = UPSAMPLINGS[0],
    steps: int | None = None,
    baseline: Any = None,
    patch: int | None = None,
    input: Any = None,
    shape: Sequence[int] | None = None,
    preprocess: str | None = None,
    size: int | tuple[int, int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    weights: str | os.PathLike[str] = "random",
    rename: Mapping[str, str] | None = None,
    partial: bool = False,
    model_args: Mapping[str, Any] | None = None,
    method: str | None = None,
    attn: str | None = None,
    trust: bool = False,
    onnx_optimize: str | None = None,
    adapter: str | os.PathLike[str] | None = None,
    seed: int = 0,
    dtype: str | None = None,
    device: str | None = None,
    train: bool = False,
    progress: Progress | None = None,
) -> Capture:
    """Explain the score of a class by a heat map over each image.

    The score is the target's logit, without softmax; for a segmentation, its sum over the positions
    at which the target is that class. Keywords that ``capture`` also has mean the same here.

    Args:
        by: from gradients and values of a layer: ``gradcam``, ``gradcam++``, ``hirescam`` or
            ``layercam``; from its values: ``eigencam`` (independent of the target) or ``scorecam``
            (one run for each channel); from the attention weights of all layers: ``rollout``
            (the target decides only which tokens are read); from the gradient at the image:
            ``guided``, ``saliency``, ``integrated`` or ``gradxinput``; from one run for each
            covered patch: ``occlusion``.
            ``hookscope.specs.cam_methods.METHODS`` has the formulas and the papers.
        layer: the name or a glob of one layer, for methods that use a layer. None: the last layer
            that has a spatial output with a gradient of the score. Maps (N, C, H, W) and
            (N, H, W, C) and tokens (N, L, C) are recognized by their shapes, and so is the number
            of class or register tokens. Of several calls of the layer the last is used.
        target: a class index, several for a batch, a label, ``argmax`` or a tensor of indices.
        upsample: ``bilinear`` or ``nearest``, from the layer's grid to the image.
        steps: for ``integrated``: points of the Gauss-Legendre quadrature; None for 50.
        baseline: for ``integrated`` and ``occlusion``: ``zero``, ``black`` or ``white`` (for image
            files), or a tensor that broadcasts to the preprocessed images. None for ``zero``.
        patch: for ``occlusion``: side of a patch in pixels; None for an eighth of the shorter side.
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
    options = CamOptions(by, layer, target, upsample, steps, baseline, patch)
    request = Request(
        "cam",
        ModelRequest(
            model, weights, rename, partial, model_args, method, attn, trust, onnx_optimize, adapter
        ),
        LayerSelection(() if layer is None else layer),
        InputRequest(input, shape, preprocess, size, mean, std),
        RunOptions(seed, dtype, device, train=train),
    )
    check_onnx_cam(request.model.source, by)
    chosen = request.chosen(options)
    chosen.pop("layers", None)  # it is the option ``layer``
    prepared = prepare(request)
    if layer is not None and len(prepared.layers) > 1:
        names = ", ".join(matched.name for matched in prepared.layers[:4])
        raise RequestError(
            f"{layer!r} matches {len(prepared.layers)} layers: {names}, ...",
            "cam explains one layer: give its full name.",
        )
    score = ClassScore(target)
    inputs = CamInput(prepared, score, layer_given=layer is not None, progress=progress)
    capture, metadata = run_cam(inputs, options)
    capture.metadata = describe_run("cam", prepared, chosen) | {"cam": metadata}
    return capture
