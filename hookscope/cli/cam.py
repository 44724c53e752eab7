"""``hookscope cam``: a heat map of the regions that a class score depends on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from hookscope.cli import options, picture_options
from hookscope.cli import options as input_options
from hookscope.cli.commands import Example, combine, command, option
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import global_options
from hookscope.cli.next_command import grads_command
from hookscope.cli.param_types import FileName
from hookscope.cli.recording_command import check_not_an_input, writes_file
from hookscope.cli.run_context import running
from hookscope.cli.table_options import table_options
from hookscope.specs.choices import OVERLAY_ALPHA
from hookscope.specs.command_options import CamOptions

if TYPE_CHECKING:
    from pathlib import Path

    from hookscope.hooks.capture import Capture
    from hookscope.specs.request import ModelRequest
    from hookscope.views.images.cam_sheet import OverlayStyle

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
)


appearance = combine(
    option(
        "--alpha",
        section="Appearance",
        default=OVERLAY_ALPHA,
        type=click.FloatRange(0, 1),
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

output = combine(
    picture_options.resolution,
    option(
        "--output",
        "-o",
        section="Output",
        type=FileName("file"),
        help="Picture to write: .png, .jpg, .svg or .pdf. The maps go to a .safetensors file beside"
        " it. Default: MODEL.cam.png.",
    ),
    options.no_output,
    options.force,
)


@command(
    "cam",
    options.model,
    options_of(CamOptions),
    input_options.inputs,
    options.run,
    appearance,
    output,
    table_options,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    main="by layer target input model-arg output no-output",
    topics="cam-methods model-specs inputs weights",
)
def cam(
    ctx: click.Context,
    output: str | None,
    no_output: bool,
    force: bool,
    alpha: float,
    colormap: str | None,
    dpi: int,
    **values: Any,
) -> None:
    """Show which parts of an image a class score depends on.

    Writes a picture of each preprocessed image with the map over it, and a safetensors file with
    the map at the resolution of the layer and of the image. Prints the layer, its grid, the class
    and its score, and the position of the maximum.
    """
    console: Console = ctx.obj
    from hookscope.cli.request_builder import build_request

    request = build_request("cam", values)
    files = _resolve_files(output, force, request.model) if writes_file(ctx) else None
    from hookscope.views.images.cam_sheet import overlay_style

    style = overlay_style(alpha, colormap, dpi)  # checked although no file may be written
    for path in files.existing() if files else ():
        from hookscope.specs.input_spec import input_paths

        read = [*input_paths(values["input"] or ()), values["weights"], values["target"]]
        check_not_an_input(path, read)
    options.note_model_source(ctx)
    console.interrupt_message = "Interrupted; nothing was written."
    with running(console, f"Running {values['model']} ..."):
        from hookscope.api.cam import cam as api_cam

        with console.bar("running") as advance:
            capture = api_cam(**values, progress=advance)
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
    if suggested := grads_command(ctx, capture.metadata["cam"].get("layer")):
        console.note(f"next: {suggested}")


class _Files(NamedTuple):
    """The picture, the file of the maps, and whether one of them replaces a file."""

    picture: Path
    maps: Path
    replaces: bool

    def existing(self) -> list[Path]:
        """Return those of the two files that exist."""
        return [path for path in (self.picture, self.maps) if path.exists()]

    def write(self, capture: Capture, console: Console, style: OverlayStyle) -> str:
        """Write both files and return a note on them."""
        from hookscope.files.words import bytes_text
        from hookscope.model_analysis.cams.overlay import write_overlay

        console.step(f"Writing {self.picture} ...")
        maps_size = bytes_text(capture.save(self.maps))
        size = bytes_text(write_overlay(capture, self.picture, style))
        console.interrupt_message = f"Interrupted; {self.picture} and {self.maps} were written."
        replaced = ", replacing earlier files" if self.replaces else ""
        return f"wrote {self.picture} ({size}), the maps to {self.maps} ({maps_size}){replaced}"


def _resolve_files(output: str | None, force: bool, model: ModelRequest) -> _Files:
    """Return the files to write, after checking them and that matplotlib is there if needed."""
    from hookscope.files import output_path as outputs

    picture, replaces = picture_options.resolve_picture_path(output, force, model.stem, "cam")
    if outputs.picture_ending(picture) in (".svg", ".pdf"):
        from hookscope.views.images import require_matplotlib

        with require_matplotlib():
            from hookscope.views.images.figures import cam_figure  # noqa: F401 - needed later
    maps = picture.with_suffix(outputs.SUFFIX)
    return _Files(picture, maps, outputs.check_output(maps, force) or replaces)
