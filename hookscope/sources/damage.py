"""Archives of models, held against their checksums before PyTorch takes them apart."""

from __future__ import annotations

import zipfile

from hookscope.errors import ModelError
from hookscope.files.detect import AGAIN
from hookscope.files.pickle_scan import DAMAGED_ZIP


def refuse_damage(path: str) -> None:
    """Raise ModelError if the zip archive at ``path`` or a record of it is damaged.

    PyTorch's own reader is written in C++, and what it makes of changed bytes nobody can foresee.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (EOFError, *DAMAGED_ZIP) as exc:
        raise ModelError(f"{path!r} is a damaged or cut-off archive: {exc}.", AGAIN) from exc
    if damaged:
        raise ModelError(f"{path!r} is damaged: {damaged} in it is not as it was saved.", AGAIN)
