"""``hookscope cam``: a heat map over the image that explains the score of a class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hookscope.cli import completion_values, input_options, options
from hookscope.cli.commands import Example, combine, command, flag, option
from hookscope.cli.console import Console
from hookscope.cli.global_options import global_options
from hookscope.cli.next_command import grads_command
from hookscope.cli.param_types import FileName
from hookscope.cli.recording_command import check_not_an_input, resolve_output_path
from hookscope.cli.run_context import running
from hookscope.cli.table_options import precision_option
from hookscope.errors import RequestError
from hookscope.specs.cam_methods import BASELINES, DEFAULT_METHOD, METHODS, STEPS, UPSAMPLINGS

if TYPE_CHECKING:
    from pathlib import Path

    from hookscope.specs.request import ModelRequest

EXAMPLES = (
    Example(
        "hookscope cam sample_models/digits.py:trained --input sample_models/five.png",
        "What makes this digit a five for a trained model.",
    ),
    Example(
        "hookscope cam sample_models/digits_scripted.pt --input sample_models/five.png"
        " --by layercam --layer conv2 --target 6",
        "What in it speaks for a six, at a layer of a scripted file.",
    ),
    Example(
        "hookscope cam resnet18 --input img.png --by gradcam++ --upsample nearest",
        "The default layer of resnet18, cell by cell.",
    ),
    Example(
        "hookscope cam swin_t --input img.png --by eigencam",
        "A model of tokens: their grid is found from the shapes.",
    ),
    Example(
        "hookscope cam sample_models/digits.py:trained --input sample_models/five.png"
        " --by integrated --baseline black --steps 64",
        "Integrated gradients, from a black image to this one.",
    ),
)


def _one_layer(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> str | None:
    """Return the one layer. Other commands take several, so a second one is an error here."""
    if len(names) > 1:
        raise RequestError(
            f"--layer is there {len(names)} times: {', '.join(names)}.",
            "A map explains one layer: name it once, and run the command once for each.",
        )
    return names[0] if names else None


how = combine(
    option(
        "--by",
        section="Map",
        default=DEFAULT_METHOD,
        type=click.Choice(list(METHODS)),
        metavar="NAME",
        help="How the map is made: a name of those below.",
    ),
    option(
        "--layer",
        "-l",
        section="Map",
        metavar="NAME",
        multiple=True,
        callback=_one_layer,
        shell_complete=completion_values.layers,
        help="The layer to explain; the last one on a grid that the score needs, if not given.",
    ),
    option(
        "--target",
        section="Map",
        default="argmax",
        type=FileName("target"),
        help="The class: an index, a list such as 3,7 for a batch, a label name, argmax, or a"
        " tensor FILE of indices.",
    ),
    option(
        "--upsample",
        section="Map",
        default=UPSAMPLINGS[0],
        type=click.Choice(UPSAMPLINGS),
        help="How the layer's grid is brought to the image's size.",
    ),
    option(
        "--steps",
        section="Map",
        type=click.IntRange(min=1),
        metavar="N",
        show_default=str(STEPS),
        help="Of integrated: the points on the way from the baseline to the image.",
    ),
    option(
        "--baseline",
        section="Map",
        type=click.Choice(BASELINES),
        show_default=BASELINES[0],
        help="Of integrated: where the way begins. zero is what the model takes for 0, black and"
        " white are images.",
    ),
)

output = combine(
    option(
        "--output",
        "-o",
        section="Output",
        type=FileName("file"),
        help="The PNG to write, beside which the maps go as .safetensors; MODEL.cam.png here if not"
        " given.",
    ),
    flag("force", section="Output", help="Replace files that hookscope did not write."),
)


def _notes() -> dict[str, list[tuple[str, str]]]:
    rows = [(method.name, f"{method.formula}; {method.paper}") for method in METHODS.values()]
    return {
        "Methods (A: the layer's output, x: the image; G, g: the score's gradients there)": rows
    }


@command(
    "cam",
    options.model,
    how,
    input_options.inputs,
    options.run,
    output,
    precision_option,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    notes=_notes,
)
def cam(ctx: click.Context, output: str | None, force: bool, **values: Any) -> None:
    """Show where in an image the score of a class comes from.

    Writes a picture of each image as the model saw it with the map over it, and beside it the map
    itself, at the layer's resolution and at the image's, as a safetensors file. Prints the layer,
    its grid, the class and its score, and where the map peaks.
    """
    console: Console = ctx.obj
    from hookscope.cli.request_builder import build_request

    request = build_request("cam", values)
    picture, maps, replaces = _resolve_paths(output, force, request.model)
    for path in (path for path in (picture, maps) if path.exists()):
        from hookscope.specs.input_spec import input_paths

        read = [*input_paths(values["input"] or ()), values["weights"], values["target"]]
        check_not_an_input(path, read)
    options.note_model_source(ctx)
    console.interrupt_message = "Interrupted; nothing was written."
    with running(console, f"Running {values['model']} ..."):
        from hookscope.analysis.cams.overlay import overlay_png
        from hookscope.api.cam import cam as api_cam
        from hookscope.files import atomic_files

        with console.bar("running") as advance:
            capture = api_cam(**values, progress=advance)
        console.step(f"Writing {picture} ...")
        maps_size = capture.save(maps)
        size = atomic_files.write_bytes(picture, overlay_png(capture))
        console.interrupt_message = f"Interrupted; {picture} and {maps} were written."
    if console.json:
        from hookscope.views.text.documents import capture_document

        console.document({**capture_document(capture, str(maps)), "picture": str(picture)})
    else:
        from hookscope.views.text.cam import cam_lines

        console.result(cam_lines(capture, console.text_options))
    from hookscope.views.text.formats import bytes_text

    replaced = ", replacing earlier files" if replaces else ""
    console.note(
        f"wrote {picture} ({bytes_text(size)}), the maps to {maps} ({bytes_text(maps_size)})"
        f"{replaced}"
    )
    console.note(f"next: {grads_command(ctx, capture.metadata['cam'].get('layer'))}")


def _resolve_paths(output: str | None, force: bool, model: ModelRequest) -> tuple[Path, Path, bool]:
    """Return the picture, the file of the maps, and whether one of them replaces a file."""
    from hookscope.specs import output_path as outputs

    if output is not None and not output.lower().endswith(".png"):
        raise RequestError(
            f"The output {output!r} is no PNG.",
            "Name the picture, such as out.png; the maps go to out.safetensors beside it.",
        )
    picture, replaces = resolve_output_path("cam", output, force, model, ".png")
    maps = picture.with_suffix(outputs.SUFFIX)
    return picture, maps, outputs.check_output(maps, force) or replaces
