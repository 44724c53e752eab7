"""Check that features of a dataset are unchanged, without torch."""

from __future__ import annotations

import os

from hookscope.errors import ResultsFileError, StoreError
from hookscope.files.progress import Progress
from hookscope.stores.features.folder_verification import Verification, verify_folder
from hookscope.stores.features.location import parse_location
from hookscope.stores.features.manifest import read_manifest


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
    location = parse_location(features)
    try:
        manifest = read_manifest(location)
    except ResultsFileError as error:  # a result of the check rather than a wrong request
        raise StoreError(error.message, error.hint) from error
    return verify_folder(location, manifest, progress or (lambda done, total: None))
