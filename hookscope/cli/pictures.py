"""What ``plot`` and ``filters`` have in common: which channels, the picture's looks, its file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hookscope import outputs
from hookscope.choices import SCALES, WAYS
from hookscope.cli.command import flag, option, together
from hookscope.cli.out import Out
from hookscope.cli.recording import say_what_was_written
from hookscope.cli.values import FileName, Parsed, indices

if TYPE_CHECKING:
    from hookscope.pictures.figures.drawing import Drawing

channels = together(
    option(
        "--channels",
        section="Channels",
        type=Parsed("list", indices),
        help="These channels, such as 0,3,8-11; of attention, these heads.",
    ),
    option(
        "--by",
        section="Channels",
        default=WAYS[0],
        type=click.Choice(WAYS),
        help="Which channels, if --channels names none: the first, those of the largest mean"
        " absolute value, or some at random.",
    ),
    option(
        "--count",
        section="Channels",
        default=16,
        type=click.IntRange(min=1),
        metavar="N",
        help="How many channels at most.",
    ),
)

looks = together(
    option(
        "--scale",
        section="Looks",
        default=SCALES[0],
        type=click.Choice(SCALES),
        help="One scale of colours for the grid, or each panel its own.",
    ),
    flag("dark", section="Looks", help="Draw on dark paper."),
)

output = together(
    option(
        "--dpi",
        section="Output",
        default=150,
        type=click.IntRange(20, 1200),
        metavar="N",
        help="Pixels an inch.",
    ),
    option(
        "--output",
        "-o",
        section="Output",
        type=FileName("file"),
        help="The picture to write, .png, .svg or .pdf; a .png beside you if not given.",
    ),
    flag("force", section="Output", help="Replace a file that hookscope did not write."),
)


def settle_picture(output: str | None, force: bool, name: str, verb: str) -> tuple[Path, bool]:
    """Return the picture to be written, and whether that replaces one; refuse what cannot be."""
    path = Path(output) if output else outputs.default_path(name, verb, ".png")
    return path, outputs.check(path, force, suffix=outputs.picture_ending(path))


def deliver(out: Out, drawing: Drawing, path: Path, replaces: bool, dpi: int, verb: str) -> None:
    """Write the picture, and tell what is in it."""
    out.step(f"Writing {path} ...")
    size = drawing.save(path, dpi)
    if out.json:
        from hookscope.render.json import document

        told = {"file": str(path), "kind": drawing.kind, "shows": drawing.shows}
        out.document(document(verb, told))
    else:
        from hookscope.render.lower import sentence

        for line in drawing.shows:
            out.result(sentence(line, out.width, out.ascii))
    say_what_was_written(out, path, size, replaces)
