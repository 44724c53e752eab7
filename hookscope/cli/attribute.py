"""``hookscope attribute``: what each token of the input contributes to a score."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hookscope.cli import input_options, options, picture_options
from hookscope.cli.commands import Example, combine, command, option
from hookscope.cli.console import Console
from hookscope.cli.global_options import global_options
from hookscope.cli.param_types import Choice, FileName
from hookscope.cli.recording_command import note_written_file, writes_file
from hookscope.cli.run_context import running
from hookscope.cli.table_options import precision_option
from hookscope.specs.attribution_options import INTEGRATED, METHOD_ALIASES, METHODS, STEPS, ZERO

if TYPE_CHECKING:
    from hookscope.results.attribution import Attribution
    from hookscope.specs.request import ModelRequest

EXAMPLES = (
    Example(
        'hookscope attribute hf:sample_models/capitals -i "text:the capital of Peru"',
        "The tokens that a prediction depends on.",
    ),
    Example(
        "hookscope attribute hf:sample_models/capitals -i text:Peru --by gradxinput",
        "The same by gradient times input.",
    ),
    Example(
        'hookscope attribute hf:sample_models/capitals -i "text:the capital of France is"'
        ' --target " Paris" --baseline " warm"',
        "The tokens that a language model predicts the next word from.",
    ),
    Example(
        'hookscope attribute hf:sample_models/capitals -i "text:the capital of France is"'
        ' --target " Paris" --against " Rome" --by occlusion -o attribution.html',
        "Why one word and not another, as a page.",
    ),
    Example(
        'hookscope attribute hf:sample_models/capitals -i "text:the capital of Peru is"'
        " --by rollout -o attribution.png",
        "Attention rollout, as a picture.",
    ),
)

how = combine(
    option(
        "--by",
        section="Attribution",
        default=INTEGRATED,
        type=Choice(METHODS, METHOD_ALIASES),
        metavar="METHOD",
        help=f"Method: {', '.join(METHODS)}.",
    ),
    option(
        "--target",
        section="Attribution",
        default="argmax",
        metavar="TOKEN",
        help="Next token, or class, that is explained: text, id or argmax.",
    ),
    option(
        "--against",
        section="Attribution",
        metavar="TOKEN",
        help="Token or class whose logit is subtracted.",
    ),
    option(
        "--position",
        section="Attribution",
        type=int,
        metavar="N",
        help="Position after which the token is predicted. Default: the last.",
    ),
    option(
        "--steps",
        section="Attribution",
        type=click.IntRange(min=1),
        metavar="N",
        show_default=str(STEPS),
        help="Steps of integrated gradients.",
    ),
    option(
        "--baseline",
        section="Attribution",
        metavar="TOKEN",
        show_default=ZERO,
        help="Token in place of the others: text, id, or zero.",
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
        " Default: MODEL.attribute.json.",
    ),
    options.no_output,
    options.force,
)


@command(
    "attribute",
    options.model,
    how,
    input_options.inputs,
    input_options.texts,
    options.run,
    output,
    precision_option,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    main="by target against baseline input output no-output",
    topics="model-specs inputs weights",
)
def attribute(
    ctx: click.Context,
    output: str | None,
    no_output: bool,
    force: bool,
    dpi: int,
    **values: Any,
) -> None:
    """Show what each token of the input contributes to a prediction.

    The score is the logit of the next token after the text, or of a class. It is distributed over
    the tokens of the input by gradients at their embeddings, by leaving out one token at a time, or
    by attention weights. The sum is compared with the difference of the scores of the input and of
    the baseline. For images, use hookscope cam.
    """
    console: Console = ctx.obj
    from hookscope.cli.request_builder import build_request

    request = build_request("attribute", values)
    file = _resolve_file(output, force, request.model) if writes_file(ctx) else None
    options.note_model_source(ctx)
    console.interrupt_message = "Interrupted; nothing was written."
    with running(console, f"Running {values['model']} ..."):
        from hookscope.api.attribute import attribute as api_attribute

        with console.bar("running") as advance:
            result = api_attribute(**values, progress=advance)
        size = 0 if file is None else _write(result, file[0], dpi)
    console.show(result, None if file is None else str(file[0]))
    if file is not None:
        note_written_file(console, file[0], size, file[1])


def _resolve_file(output: str | None, force: bool, model: ModelRequest) -> tuple[Path, bool]:
    """Return the file to write, and whether it replaces one, after checking both."""
    from hookscope.specs import output_path as outputs

    path = Path(output) if output else outputs.default_path(model.stem, "attribute", ".json")
    ending = outputs.view_ending(path)
    if ending in outputs.PICTURE_MARKS:
        from hookscope.views.images import require_matplotlib

        with require_matplotlib():
            from hookscope.views.images.figures import attribution_figure  # noqa: F401 - needed later
    return path, outputs.check_output(path, force, suffix=ending)


def _write(result: Attribution, path: Path, dpi: int) -> int:
    if path.suffix.lower() == ".json":
        return result.save(path)
    if path.suffix.lower() == ".html":
        from hookscope.views.html.attribution_page import write_attribution_page

        return write_attribution_page(result, path)
    from hookscope.views.images.figures.attribution_figure import draw_attribution

    return draw_attribution(result).save(path, dpi)
