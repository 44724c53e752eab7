"""``hookscope lens``: what each layer of a language model would predict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hookscope.cli import input_options, options, picture_options
from hookscope.cli.commands import Example, combine, command, option
from hookscope.cli.console import Console
from hookscope.cli.global_options import global_options
from hookscope.cli.param_types import FileName
from hookscope.cli.recording_command import note_written_file, writes_file
from hookscope.cli.run_context import running
from hookscope.cli.table_options import precision_option

if TYPE_CHECKING:
    from hookscope.results.lens import Lens
    from hookscope.specs.request import ModelRequest

EXAMPLES = (
    Example(
        'hookscope lens hf:sample_models/capitals -i "text:the capital of Peru is"',
        "The layer at which a small language model knows the next word.",
    ),
    Example(
        'hookscope lens hf:sample_models/capitals -i "text:the capital of" -o lens.png',
        "The same as a picture.",
    ),
    Example(
        'hookscope lens hf:sample_models/capitals -i "text:the capital of France is"'
        ' --target " Paris" --layer model.layers.1 --layer model.layers.3',
        "Two layers, with the rank of one token.",
    ),
)

how = combine(
    option(
        "--target",
        section="Lens",
        default="argmax",
        metavar="TOKEN",
        help="Token of the rank and probability: text, id or argmax.",
    ),
    option(
        "--norm",
        section="Lens",
        metavar="NAME",
        help="Final norm, or none. Default: the module that feeds the head.",
    ),
    option(
        "--head",
        section="Lens",
        metavar="NAME",
        help="Unembedding. Default: the module that returns the logits.",
    ),
)

output = combine(
    picture_options.resolution,
    option(
        "--output",
        "-o",
        section="Output",
        type=FileName("file"),
        help="File to write: .json, .html, or a picture (.png, .jpg, .svg, .pdf)."
        " Default: MODEL.lens.json.",
    ),
    options.no_output,
    options.force,
)


@command(
    "lens",
    options.model,
    how,
    options.layers,
    input_options.inputs,
    input_options.texts,
    options.run,
    output,
    precision_option,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    main="layer target input output no-output",
    topics="model-specs layers inputs weights",
)
def lens(
    ctx: click.Context,
    output: str | None,
    no_output: bool,
    force: bool,
    dpi: int,
    **values: Any,
) -> None:
    """Show what each layer of a language model would predict.

    This is the logit lens: it applies the model's final norm and its unembedding to the output of
    every block, or of the layers that --layer selects, at every position, and shows the most
    probable next token. The last position is shown in figures: the rank and probability of a
    target, and the divergence from the prediction of the whole model.
    """
    console: Console = ctx.obj
    from hookscope.cli.request_builder import build_request

    request = build_request("lens", values)
    file = _resolve_file(output, force, request.model) if writes_file(ctx) else None
    options.note_model_source(ctx)
    console.interrupt_message = "Interrupted; nothing was written."
    with running(console, f"Running {values['model']} ..."):
        from hookscope.api.lens import lens as api_lens

        result = api_lens(**values)
        size = 0 if file is None else _write(result, file[0], dpi)
    console.show(result, None if file is None else str(file[0]))
    if file is not None:
        note_written_file(console, file[0], size, file[1])


def _resolve_file(output: str | None, force: bool, model: ModelRequest) -> tuple[Path, bool]:
    """Return the file to write, and whether it replaces one, after checking both."""
    from hookscope.specs import output_path as outputs

    path = Path(output) if output else outputs.default_path(model.stem, "lens", ".json")
    ending = outputs.view_ending(path)
    if ending in outputs.PICTURE_MARKS:
        from hookscope.views.images import require_matplotlib

        with require_matplotlib():
            from hookscope.views.images.figures import lens_figure  # noqa: F401 - needed later
    return path, outputs.check_output(path, force, suffix=ending)


def _write(result: Lens, path: Path, dpi: int) -> int:
    if path.suffix.lower() == ".json":
        return result.save(path)
    if path.suffix.lower() == ".html":
        from hookscope.views.html.lens_page import write_lens_page

        return write_lens_page(result, path)
    from hookscope.views.images.figures.lens_figure import draw_lens

    return draw_lens(result).save(path, dpi)
