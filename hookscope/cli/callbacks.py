"""Checks of options that need Click's context, named in the descriptions of settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hookscope.specs.input_spec import InputSpec

_CHECKED_FILES = 64  # of a folder; a few show whether they are what their names say


def one_batch(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> list[InputSpec] | None:
    """Parse the values of --input as one batch, and check what their files are."""
    if not value or ctx.resilient_parsing:
        return None
    from hookscope.cli.run_context import show_logs
    from hookscope.errors import InputError
    from hookscope.files.text_sources import needs_dataset
    from hookscope.specs.input_spec import check_file_type, parse_inputs

    if listing := next(filter(needs_dataset, value), None):
        raise InputError(
            f"{listing!r} lists many inputs, which only 'hookscope extract' reads.",
            "Use that command, or repeat --input for each.",
        )
    show_logs(ctx.obj)  # prints what was skipped in folders
    parsed = parse_inputs(value)
    for input_spec in parsed[:_CHECKED_FILES]:
        check_file_type(input_spec)
    return parsed


def one_layer(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> str | None:
    """Return the one layer. Other commands take several, so a second one is an error here."""
    from hookscope.errors import RequestError

    if len(names) > 1:
        raise RequestError(
            f"--layer is given {len(names)} times: {', '.join(names)}.",
            "A map is computed at one layer. Run the command once for each.",
        )
    return names[0] if names else None
