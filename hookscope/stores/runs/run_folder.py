"""Names of run folders, ``runs/SCRIPT-1`` and so on; imports little, as a script waits for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import count
from pathlib import Path

from hookscope.errors import RequestError, StoreError, cause
from hookscope.files.output_path import RUN_FILE

LAUNCH_FILE = "launch.txt"  # which launch of torchrun a folder belongs to


def check_run_folder(
    output: str | os.PathLike[str] | None,
    environ: Mapping[str, str],
    start: str | os.PathLike[str] = "",
) -> None:
    """Check that the folder of the run can be created and is not in use.

    It is the folder that the user named, under torchrun that of the rank in it.
    """
    folder = Path(start, "runs" if output is None else output)
    _check_can_create(folder)
    if output is None:
        return
    if launch_in(environ) and not (folder / RUN_FILE).exists():  # else a run without ranks
        folder /= _rank_folder(environ)
    if folder.is_dir() and any(folder.iterdir()):
        raise RequestError(
            f"{folder} is not empty.", "Name another folder with --output, or remove this one."
        )


def _check_can_create(folder: Path) -> None:
    """Raise RequestError if a folder does not exist and cannot be created."""
    above = next(one for one in (folder, *folder.absolute().parents) if os.path.exists(one))
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        what = "is not writable" if above.is_dir() else "is not a folder"
        raise RequestError(
            f"The folder of the run, {folder}, cannot be created: {above} {what}.",
            "Name another folder with --output.",
        )


def create_run_folder(
    script: str,
    output: str | os.PathLike[str] | None,
    environ: Mapping[str, str],
    start: str | os.PathLike[str] = "",
) -> Path:
    """Create the folder of a run, and return it.

    Under torchrun it is the folder of this rank, ``rank0`` and so on. All ranks of a launch find
    the same folder without exchanging a message: its first rank writes what identifies the launch.
    """
    check_run_folder(output, environ, start)
    launch = launch_in(environ)
    try:
        if output is not None:
            folder = Path(start, output)
            if launch:
                folder /= _rank_folder(environ)
            folder.mkdir(parents=True, exist_ok=True)
        else:
            folder = _new_folder(Path(start, "runs"), Path(script).stem, launch)
            if launch:
                folder /= f"rank{int(environ['RANK'])}"
                folder.mkdir(exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"Cannot create the folder of the run: {cause(error)}.",
            "Name another folder with --output.",
        ) from error
    return folder


def _new_folder(runs: Path, stem: str, launch: str | None) -> Path:
    runs.mkdir(exist_ok=True)
    for number in count(1):
        folder = runs / f"{stem}-{number}"
        if launch is not None:
            if not folder.exists():
                _create_for_launch(folder, launch)
            if _launch_of(folder) == launch:
                return folder
            continue
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise AssertionError


def _create_for_launch(folder: Path, launch: str) -> None:
    """Create the folder with its file as one, unless another rank was faster."""
    import shutil
    import tempfile

    from hookscope.files.atomic_files import umask

    scratch = Path(tempfile.mkdtemp(dir=folder.parent))
    (scratch / LAUNCH_FILE).write_text(launch, encoding="utf-8")
    scratch.chmod(0o777 & ~umask())
    try:
        scratch.rename(folder)
    except OSError:  # it exists
        shutil.rmtree(scratch)


def _launch_of(folder: Path) -> str:
    path = folder / LAUNCH_FILE
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def launch_in(environ: Mapping[str, str]) -> str | None:
    """Return what identifies a launch of torchrun; None without one."""
    if not all(environ.get(name, "").isdecimal() for name in ("RANK", "WORLD_SIZE")):
        return None
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    # Two launches may have the same address: the parent is the agent of this launch.
    return " ".join([*(environ.get(name, "") for name in names), str(os.getppid())])


def _rank_folder(environ: Mapping[str, str]) -> Path:
    """The folder of a rank in the one that the user named; torchrun may have restarted it."""
    restarts = int(environ.get("TORCHELASTIC_RESTART_COUNT") or 0)
    return Path(f"restart{restarts}" if restarts else "", f"rank{int(environ['RANK'])}")
