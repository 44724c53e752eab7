"""``hookscope verify``: check that features of a dataset are unchanged."""

from __future__ import annotations

import click

from hookscope.cli.commands import Example, command
from hookscope.cli.console import Console
from hookscope.cli.export import features
from hookscope.cli.global_options import global_options

DAMAGED = 1

EXAMPLES = (
    Example("hookscope verify sample_models/features/", "Read every shard and hash it."),
    Example("hookscope verify sample_models/features/ --json", "The same for a program."),
)


@command("verify", features, global_options, click.pass_context, examples=EXAMPLES)
def verify(ctx: click.Context, features: str) -> None:
    """Check the features of a dataset against what was written.

    Each file is compared with the checksum that it was written with, and the index and the table of
    inputs with the shards. Exit status: 0 all is intact, 1 something is damaged, missing or not
    finished, 2 there are no features.
    """
    console: Console = ctx.obj
    from hookscope.api.verify import verify as api_verify

    with console.bar("Verifying") as advance:
        verification = api_verify(features, progress=advance)
    console.show(verification)
    if verification.ok:
        return
    console.note(
        "next: the command that wrote the folder, with --resume, which mends what is damaged"
    )
    ctx.exit(DAMAGED)
