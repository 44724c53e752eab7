"""Explain the score of a class by a heat map over the image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import click

from hookscope.cli import options
from hookscope.cli.commands import Example, combine, option
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import command, table_options
from hookscope.cli.next_command import grads_command
from hookscope.cli.output_file import PICTURE, check_not_among, files_read, without_output
from hookscope.cli.param_types import FloatRange
from hookscope.cli.run_context import running
from hookscope.cli.runner import NOTHING_WRITTEN
from hookscope.errors import RequestError
from hookscope.files.optional_packages import require_nibabel
from hookscope.files.output_path import map_or_picture_ending
from hookscope.files.progress_types import Progress
from hookscope.specs.choices import OVERLAY_ALPHA
from hookscope.specs.command_options import CamOptions
from hookscope.specs.public import NO_TEXTS, PLAIN_RUN, public
from hookscope.specs.request import InputRequest, LayerSelection, ModelRequest, Request
from hookscope.specs.run_options import RunOptions

if TYPE_CHECKING:
    from pathlib import Path

    from hookscope.hooks.capture import Capture
    from hookscope.views.images.cam_sheet import OverlayStyle


@public
def cam(
    options: CamOptions,
    input: Annotated[InputRequest, NO_TEXTS],
    model: ModelRequest,
    run: Annotated[RunOptions, PLAIN_RUN],
    request: Request,
    *,
    progress: Progress | None = None,
) -> Capture:
    """Explain the score of a class by a heat map over each image, volume or signal.

    The score is the target's logit, without softmax; for a segmentation, its sum over the positions
    at which the target is that class; with ``box``, the score of a detected object.

    Args:
        input: image files, or the arguments of the model; the first floating-point tensor (N, C, H,
            W) is taken as the images, else (N, C, D, H, W) as volumes or (N, C, L) as signals.
        progress: called with the number of runs done and the total, by ``scorecam``,
            ``integrated`` and ``occlusion``.

    Returns:
        A capture with ``<layer>/cam``, float32 or wider, (N, h, w), the map on the layer's grid;
        ``./cam``, (N, H, W), at the images' size; and ``./image``, uint8 (N, 3, H, W), the images.
        Methods at the image return ``./input.0.attribution``, signed, (N, C, H, W), instead of
        ``<layer>/cam``. Maps of volumes and signals have their sides instead of H and W, and the
        input is ``./volume``, uint8 (N, 3, D, H, W), or ``./signal``. Maps are never negative.
        ``metadata["cam"]`` has the layer, the grid, and
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
    from hookscope.execution.prepare import prepare
    from hookscope.execution.provenance import describe_run
    from hookscope.model_analysis.cams.box_score import BoxScore
    from hookscope.model_analysis.cams.cam_input import CamInput
    from hookscope.model_analysis.cams.cam_run import run_cam
    from hookscope.model_analysis.cams.scores import ClassScore, Score

    layer = options.layer
    selection = LayerSelection(() if layer is None else layer)
    request = replace(request, layers=selection)
    chosen = request.chosen(options)
    chosen.pop("layers", None)  # it is the option ``layer``
    prepared = prepare(request)
    if layer is not None and len(prepared.layers) > 1:
        names = ", ".join(matched.name for matched in prepared.layers[:4])
        raise RequestError(
            f"{layer!r} matches {len(prepared.layers)} layers: {names}, ...",
            "cam explains one layer: give its full name.",
        )
    score: Score = (
        ClassScore(options.target, options.scores)
        if options.box is None
        else BoxScore(options.box, options.target, options.scores)
    )
    inputs = CamInput(prepared, score, layer_given=layer is not None, progress=progress)
    capture, metadata = run_cam(inputs, options)
    capture.metadata = describe_run("cam", prepared, chosen) | {"cam": metadata}
    return capture


EXAMPLES = (
    Example(
        "hookscope cam sample_models/digits.py:trained --input sample_models/five.png",
        "Why a trained model sees a five.",
    ),
    Example(
        "hookscope cam resnet18 --input img.png --by gradcam++ --upsample nearest --alpha 0.5"
        " --colormap turbo",
        "Another method, without interpolation, in other colours.",
    ),
    Example(
        "hookscope cam swin_t --input img.png --by eigencam",
        "A vision transformer: the grid of tokens is found from the shapes.",
    ),
    Example(
        "hookscope cam vit_b_16 --input img.png --by rollout -o rollout.svg",
        "Attention rollout, as a vector graphic.",
    ),
    Example(
        "hookscope cam sample_models/digits_scripted.pt --input sample_models/five.png"
        " --by layercam --layer conv2 --target 6",
        "Regions that support a six, at a layer of a scripted file.",
    ),
    Example(
        "hookscope cam sample_models/digits.py:trained --input sample_models/five.png"
        " --by integrated --baseline black --steps 64",
        "Integrated gradients, from a black image to this one.",
    ),
    Example(
        "hookscope cam r3d_18 --shape 1x3x8x64x64 --layer layer3 -o clip.npy",
        "A volume or a clip (N, C, D, H, W): the map as an array.",
    ),
    Example(
        "hookscope cam ssdlite320_mobilenet_v3_large --input img.png --box 0"
        " --model-arg score_thresh=0",
        "Why a detector found its first object.",
    ),
)

appearance = combine(
    option(
        "--alpha",
        section="Appearance",
        default=OVERLAY_ALPHA,
        type=FloatRange(0, 1),
        metavar="A",
        help="Opacity of the map over the image, 0 to 1.",
    ),
    option(
        "--colormap",
        section="Appearance",
        metavar="NAME",
        show_default="hookscope's own",
        help="Colour map of matplotlib, such as viridis.",
    ),
)

OUTPUT = replace(
    PICTURE,
    help="Picture to write (.png, .jpg, .svg, .pdf), or the map alone (.npy, .nii, .nii.gz). All"
    " goes to a .safetensors file beside it. Default: MODEL.cam.png.",
    ending_of=map_or_picture_ending,
    optional=True,
)


@command(
    "cam",
    options.model,
    options_of(CamOptions),
    options.inputs,
    options.run,
    appearance,
    OUTPUT.options,
    table_options,
    views="cam",
    examples=EXAMPLES,
    main="by layer target input model-arg output no-output",
    also="box receptive shape size upsample",
    topics="cam-methods model-specs inputs weights",
)
def cam_command(ctx: click.Context, alpha: float, colormap: str | None, **values: Any) -> None:
    """Show which parts of an image a class score depends on.

    Writes a picture of each preprocessed image with the map over it, and a safetensors file with
    the map at the resolution of the layer and of the image. Prints the layer, its grid, the class
    and its score, and the position of the maximum.
    """
    console: Console = ctx.obj
    dpi = values["dpi"]
    values = without_output(values)
    job = cam.checked(**values)
    files = _Files.of(ctx, job.request.model.stem, files_read(values))
    from hookscope.views.images.cam_sheet import overlay_style

    style = overlay_style(alpha, colormap, dpi)  # checked although no file may be written
    options.note_model_source(ctx)
    console.interrupt_message = NOTHING_WRITTEN
    with running(console, f"Running {values['model']} ..."):
        with console.bar("running") as advance:
            capture = job(progress=advance)
        written = files.write(capture, console, style) if files else ""
    if console.json:
        from hookscope.views.capture import capture_document

        maps, picture = (str(files.maps), str(files.picture)) if files else (None, None)
        console.document({**capture_document(capture, maps), "picture": picture})
    else:
        from hookscope.views.cam import cam_lines

        console.result(cam_lines(capture, console.text_options))
    if written:
        console.note(written)
    suggested = grads_command(ctx, capture.metadata["cam"].get("layer"))
    if suggested and values["box"] is None:  # no loss of grads is the score of an object
        console.note(f"next: {suggested}")


class _Files(NamedTuple):
    """The picture, the file of the maps, and whether one of them replaces a file."""

    picture: Path
    maps: Path
    replaces: bool

    @classmethod
    def of(cls, ctx: click.Context, stem: str, inputs: Sequence[Any]) -> _Files | None:
        """Return the files to write, after checking them and that matplotlib is there if needed."""
        from hookscope.files import output_path as outputs

        picture = OUTPUT.resolve(ctx, stem, inputs)
        if picture is None:
            return None
        if picture.ending in (".svg", ".pdf"):
            from hookscope.views.images import require_matplotlib

            require_matplotlib()
        if picture.ending in outputs.VOLUMES:
            require_nibabel()
        stem = picture.path.name[: -len(picture.ending)]
        path = picture.path.with_name(stem + outputs.SUFFIX)
        check_not_among(path, inputs)
        replaces = outputs.check_output(path, ctx.params["force"])
        return cls(picture.path, path, picture.replaces or replaces)

    def write(self, capture: Capture, console: Console, style: OverlayStyle) -> str:
        """Write both files and return a note on them."""
        from hookscope.files.words import bytes_text
        from hookscope.model_analysis.cams.overlay import check_map_format, write_overlay

        check_map_format(capture, self.picture)
        console.step(f"Writing {self.picture} ...")
        maps_size = bytes_text(capture.save(self.maps))
        size = bytes_text(write_overlay(capture, self.picture, style))
        console.interrupt_message = f"Interrupted; {self.picture} and {self.maps} were written."
        replaced = ", replacing earlier files" if self.replaces else ""
        return f"wrote {self.picture} ({size}), the maps to {self.maps} ({maps_size}){replaced}"
