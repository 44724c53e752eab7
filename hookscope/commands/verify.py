"""Check that features of a dataset are unchanged, without torch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from hookscope.cli.commands import Example
from hookscope.cli.console import Console
from hookscope.cli.global_options import command, format_options
from hookscope.commands.export import features
from hookscope.errors import FAILED, ResultsFileError, StoreError
from hookscope.files.progress_types import Progress

if TYPE_CHECKING:
    from hookscope.stores.features.folder_verification import Verification


def verify(features: str | os.PathLike[str], *, progress: Progress | None = None) -> Verification:
    """Read every file of a features folder, and return which are damaged or missing.

    Each shard is compared with its recorded length and CRC-32, the index with the contents of the
    shards, the table of inputs with its CRC-32, and each JSON file with its own checksum.

    Args:
        features: the folder, or its address.
        progress: called with the number of shards done and the total.

    Returns:
        The damage, file by file; ``ok`` is True if there is none.

    Raises:
        RequestError: there is no such folder, or it has no features.
        StoreError: the run that writes it is not finished, or the manifest is damaged.

    Example:
        >>> import hookscope
        >>> found = hookscope.verify("sample_models/features")
        >>> found.ok, found.rows, found.damages
        (True, 10, ())
    """
    from hookscope.stores.features.folder_verification import verify_folder
    from hookscope.stores.features.location import parse_location
    from hookscope.stores.features.manifest import read_manifest

    location = parse_location(features)
    try:
        manifest = read_manifest(location)
    except ResultsFileError as error:  # a result of the check rather than a wrong request
        raise StoreError(error.message, error.hint) from error
    return verify_folder(location, manifest, progress or (lambda done, total: None))


EXAMPLES = (
    Example("hookscope verify sample_models/features/", "Read and check every shard."),
    Example("hookscope verify sample_models/features/ --json", "The same as JSON."),
)


@command(
    "verify",
    features,
    format_options,
    examples=EXAMPLES,
    main="json verbose",
)
def verify_command(ctx: click.Context, features: str) -> None:
    """Check features on disk for damage.

    Compares each file with its checksum, and the index and the table of inputs with the shards.
    Exit status: 0 if everything is intact, 1 if something is damaged, missing or unfinished, 2 if
    there are no features.
    """
    console: Console = ctx.obj
    with console.bar("Verifying") as advance:
        verification = verify(features, progress=advance)
    console.show(verification)
    if verification.ok:
        return
    console.note(
        "next: run the command that wrote the folder with --resume, which rewrites damaged shards"
    )
    ctx.exit(FAILED)
