"""Zip archives written again with other records."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

Change = Callable[[str, bytes], bytes | str | None]


def rezip(
    path: Path,
    to: Path,
    change: Change = lambda name, data: data,
    *,
    rename: Callable[[str], str] = str,
    added: Mapping[str, bytes] | None = None,
    packing: int = zipfile.ZIP_STORED,
) -> Path:
    """Write an archive with each record changed, left out where that is None; return ``to``."""
    whole = io.BytesIO(path.read_bytes())  # which ``to`` may replace
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(to, "w", packing) as new:
        for name in old.namelist():
            record = change(name, old.read(name))
            if record is not None:
                new.writestr(rename(name), record)
        for name, record in (added or {}).items():
            new.writestr(name, record)
    return to
