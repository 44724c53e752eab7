"""Where a run is to be written, checked before the script runs. It must import little."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hookscope.errors import RequestError
from hookscope.files.output_path import RUN_FILE


def check_run_folder(output: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> None:
    """Check that the folder that the user named is not in use; under torchrun that of the rank."""
    if output is None:
        return
    folder = Path(output)
    if launch_in(environ) and not (folder / RUN_FILE).exists():  # else a run without ranks
        folder /= rank_folder_name(environ)
    if folder.is_dir() and any(folder.iterdir()):
        raise RequestError(
            f"{folder} is not empty.", "Name another folder with --output, or remove this one."
        )


def launch_in(environ: Mapping[str, str]) -> str | None:
    """Return what identifies a launch of torchrun; None without one."""
    if not all(environ.get(name, "").isdecimal() for name in ("RANK", "WORLD_SIZE")):
        return None
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    # Two launches may have the same address: the parent is the agent of this launch.
    return " ".join([*(environ.get(name, "") for name in names), str(os.getppid())])


def rank_folder_name(environ: Mapping[str, str]) -> Path:
    """The folder of a rank in the one that the user named; torchrun may have restarted it."""
    restarts = int(environ.get("TORCHELASTIC_RESTART_COUNT") or 0)
    return Path(f"restart{restarts}" if restarts else "", f"rank{int(environ['RANK'])}")
