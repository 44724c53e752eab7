"""The fingerprints of single steps in a run folder: ``fingerprints/step-000000050-MODEL.fp``."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path

from hookscope.files.own_folder import check_own

FOLDER = "fingerprints"
_NAME = re.compile(r"step-(?P<step>\d{9,})-(?P<model>.+)\.fp")
_NOT_IN_NAMES = re.compile(r"[^\w.\-]")


def fingerprint_path(folder: Path, model: str, step: int) -> Path:
    """Return the file of a model in one step.

    >>> fingerprint_path(Path("runs"), "net", 50).name
    'step-000000050-net.fp'
    """
    return folder / FOLDER / f"step-{step:09}-{_NOT_IN_NAMES.sub('_', model)}.fp"


def step_fingerprints(folder: Path) -> dict[str, dict[int, Path]]:
    """Return the fingerprints of a run: by the name of the model in files, and by the step."""
    found: dict[str, dict[int, Path]] = defaultdict(dict)
    path = folder / FOLDER
    for name in sorted(os.listdir(path)) if path.is_dir() else ():
        if match := _NAME.fullmatch(name):
            found[match["model"]][int(match["step"])] = check_own(path / name, folder)
    return dict(found)
