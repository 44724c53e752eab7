"""``hookscope verify``: check that features of a dataset are unchanged."""

from __future__ import annotations

import click

from hookscope.cli.commands import Example, command
from hookscope.cli.console import Console
from hookscope.cli.export import features
from hookscope.cli.global_options import global_options
from hookscope.cli.table_options import csv_option

DAMAGED = 1

EXAMPLES = (
    Example("hookscope verify sample_models/features/", "Read and check every shard."),
    Example("hookscope verify sample_models/features/ --json", "The same as JSON."),
)


@command(
    "verify",
    features,
    csv_option,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    main="json verbose",
)
def verify(ctx: click.Context, features: str) -> None:
    """Check features on disk for damage.

    Compares each file with its checksum, and the index and the table of inputs with the shards.
    Exit status: 0 if everything is intact, 1 if something is damaged, missing or unfinished, 2 if
    there are no features.
    """
    console: Console = ctx.obj
    from hookscope.api.verify import verify as api_verify

    with console.bar("Verifying") as advance:
        verification = api_verify(features, progress=advance)
    console.show(verification)
    if verification.ok:
        return
    console.note(
        "next: run the command that wrote the folder with --resume, which rewrites damaged shards"
    )
    ctx.exit(DAMAGED)
