"""The file that a command writes, checked before torch is imported: its name and its format."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Sequence
from pathlib import Path
from typing import NamedTuple

from hookscope.errors import RequestError
from hookscope.files.own_folder import ADDRESS as ADDRESS
from hookscope.files.own_folder import check_own
from hookscope.files.safetensors_header import METADATA, header_of
from hookscope.files.shell_words import join_words
from hookscope.files.words import join_or, natural_order

SUFFIX, NPY, NPZ = ".safetensors", ".npy", ".npz"
PAGE = ".html"
PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".svg", ".pdf")
MARK = "hookscope"  # the one metadata key of a file that hookscope wrote, the first one in JSON
PAGE_MARK = "<!doctype html>\n<!-- hookscope report -->"  # how a page of ours begins
TRACE_MARK = ("otherData", MARK)  # the first keys, nested, of a trace of ours
# The author's mark in an image of ours: near the beginning or, in a PDF, near the end.
_JPEG_MARK = b"\xff\xfe\0" + bytes([2 + len(MARK)]) + MARK.encode()  # a comment
PICTURE_MARKS = {
    ".png": f"tEXtSoftware\0{MARK}".encode(),
    ".jpg": _JPEG_MARK,
    ".jpeg": _JPEG_MARK,
    ".svg": f"<dc:title>{MARK}</dc:title>".encode(),
    ".pdf": f"/Creator ({MARK})".encode(),
}
# How pillow writes a JPEG: with our mark in a comment, and no colours at half the resolution.
JPEG_OPTIONS = {"quality": 95, "subsampling": 0, "comment": MARK.encode()}
RECORDINGS = (SUFFIX, NPY, NPZ)  # the formats of a recording
TABLES = (*RECORDINGS, ".parquet")  # the formats of an export
ANALYSES = (".json", ".csv", *PICTURE_SUFFIXES)  # the formats of an analysis of features
RUN_TABLES = (".csv", ".parquet")  # the formats of an export of a training run
VOLUMES = (".nii", ".nii.gz")  # NIfTI
TRACKERS = ("wandb", "mlflow")  # of experiments: they take the export of a training run
_MARKLESS = (NPY, *VOLUMES, *RUN_TABLES)  # they have no place for a mark
_ARCHIVE_END = b"PK\5\6"  # 22 bytes at the end of a zip archive, before its comment
# How a report of findings of ours begins: the first key of one format, the text of the other.
REPORT_MARKS = {
    ".sarif": f'{{"properties": {{"{MARK}": "check"}}',
    ".xml": f'<?xml version="1.0" encoding="utf-8"?>\n<!-- {MARK} check -->\n',
}
_ADD_CSV = " To write the table as CSV, leave out --output and add: --csv > FILE.csv"
FINGERPRINT = ".fp"
FINGERPRINT_MARK = "# hookscope fingerprint "  # how one begins
RUN_FILE = "run.json"  # in the folder of a training run
FEATURES_INDEX = "features.safetensors.index.json"  # in a features folder
_RANK_FOLDER = re.compile(r"rank(\d+)")
_NEAR = 4096  # bytes


class TrackerAddress(NamedTuple):
    """Where an experiment tracker keeps runs: a project of wandb, an experiment of MLflow."""

    tracker: str
    project: str


def tracker_of(path: str | os.PathLike[str]) -> TrackerAddress | None:
    """Return the tracker that an output names, as in ``wandb:PROJECT``; None for a file or folder.

    >>> tracker_of("wandb:digits"), tracker_of("wandb.csv")
    (TrackerAddress(tracker='wandb', project='digits'), None)
    """
    tracker, colon, project = os.fspath(path).partition(":")
    if not colon or tracker not in TRACKERS:
        return None
    if not project.strip():
        raise RequestError(f"The output {path} names no project.", f"Write {tracker}:NAME.")
    return TrackerAddress(tracker, project)


def names_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a path means a folder: an address, a path with a final slash, or an existing folder.

    >>> names_folder("features/"), names_folder("s3://lab/run1"), names_folder("a.safetensors")
    (True, True, False)
    """
    text = os.fspath(path)
    return ADDRESS in text or text.endswith(("/", os.sep)) or os.path.isdir(text)


def holds_features(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a features folder, or an address, which is always one."""
    text = os.fspath(path)
    return ADDRESS in text or os.path.isfile(os.path.join(text, "manifest.json"))


def is_run_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a path is the folder of a training run, or that of the ranks of one."""
    return os.path.isfile(os.path.join(path, RUN_FILE)) or bool(rank_folders(path))


def rank_folders(path: str | os.PathLike[str]) -> list[Path]:
    """Return the folders ``rank0``, ``rank1``, ... of a run of several processes, in order."""
    if not os.path.isdir(path):
        return []
    ranks = {
        int(match[1]): Path(path, name)
        for name in os.listdir(path)
        if (match := _RANK_FOLDER.fullmatch(name)) and Path(path, name, RUN_FILE).is_file()
    }
    return [check_own(ranks[rank], path) for rank in sorted(ranks)]


def runs_in(path: str | os.PathLike[str]) -> list[Path]:
    """Return the training runs in a folder such as ``runs``, in the order of their numbers."""
    if not os.path.isdir(path) or is_run_folder(path):
        return []
    folders = [Path(path, name) for name in os.listdir(path) if is_run_folder(Path(path, name))]
    folders.sort(key=lambda folder: natural_order(folder.name))
    return [check_own(folder, path) for folder in folders]


def is_hookscope_file(path: Path, suffix: str = SUFFIX) -> bool:
    """Whether hookscope wrote ``path`` as this type, as its beginning and end show."""
    in_json = ('{{"{}": {{"{}":'.format(*TRACE_MARK).encode(), f'{{"{MARK}": "'.encode())
    starts = (PAGE_MARK.encode(),) if suffix == PAGE else in_json
    if suffix in REPORT_MARKS:
        starts = (REPORT_MARKS[suffix].encode(),)
    elif suffix == FINGERPRINT:
        starts = (FINGERPRINT_MARK.encode(),)
    try:
        if not path.is_file():  # a pipe would be read, or waited for
            return False
        if suffix == NPZ:
            return _has_comment(path)
        if suffix in PICTURE_MARKS:
            with path.open("rb") as file:
                ends = [file.read(_NEAR)]
                file.seek(-min(_NEAR, path.stat().st_size), os.SEEK_END)
                return any(PICTURE_MARKS[suffix] in end for end in [*ends, file.read()])
        if suffix != SUFFIX:
            with path.open("rb") as file:
                return file.read(max(map(len, starts))).startswith(starts)
        metadata = header_of(path)[0].get(METADATA)
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(metadata, dict) and MARK in metadata


def is_fingerprint(source: object) -> bool:
    """Whether a source is the path of a fingerprint of a model."""
    if not isinstance(source, str | os.PathLike):
        return False
    return is_hookscope_file(Path(source), FINGERPRINT)


def _has_comment(path: Path) -> bool:
    """Whether a zip archive ends in the comment that hookscope writes."""
    with path.open("rb") as file:
        file.seek(-22 - len(MARK), os.SEEK_END)
        end = file.read()
    return end.startswith(_ARCHIVE_END) and end.endswith(MARK.encode())


def recording_ending(path: Path) -> str:
    """Return the suffix of the file of a recording; that of safetensors if the name has none."""
    if path.suffix.lower() in PICTURE_SUFFIXES:
        raise RequestError(
            f"The output {path} has the extension of an unsupported format.",
            f"Use {join_or(RECORDINGS)}. For a picture:"
            f" hookscope plot FILE{SUFFIX} LAYER -o {join_words([str(path)])}",
        )
    return known_ending(path, RECORDINGS) if path.suffix else SUFFIX


def check_ending(path: Path, *endings: str) -> None:
    """Check that the suffix of a name matches the format that is written."""
    if path.suffix:
        known_ending(path, endings)


def known_ending(path: Path, endings: Sequence[str]) -> str:
    """Return the suffix of a file in lower case, which determines its format."""
    prints_table = tuple(endings) not in (TABLES, (PAGE,))  # export and report have no --csv
    advice = _ADD_CSV if prints_table and path.suffix.lower() == ".csv" else ""
    hint = f"Use {join_or(endings)}.{advice}"
    return _ending_among(endings, path, "has the extension of an unsupported format", hint)


def _ending_among(endings: Container[str], path: Path, error: str, hint: str) -> str:
    ending = path.suffix.lower()
    if ending not in endings:
        if tracker_of(path):
            raise RequestError(f"{path} can only take the export of a training run.", hint)
        raise RequestError(f"The output {path} {error}.", hint)
    return ending


def picture_ending(path: Path) -> str:
    """Return the suffix of an image file, which determines its format."""
    hint = f"Use {join_or(PICTURE_SUFFIXES)}."
    error = "does not have the extension of a picture"
    return _ending_among(PICTURE_SUFFIXES, path, error, hint)


def map_or_picture_ending(path: Path) -> str:
    """Return the suffix of what ``cam`` writes: a picture, or the map as an array."""
    if path.name.lower().endswith(VOLUMES[1]):
        return VOLUMES[1]
    formats = (*PICTURE_SUFFIXES, NPY, VOLUMES[0])
    arrays = join_or((NPY, *VOLUMES))
    hint = f"Use {join_or(PICTURE_SUFFIXES)} for a picture, or {arrays} for the map."
    return _ending_among(formats, path, "does not have the extension of a picture", hint)


def run_table_ending(path: Path) -> str:
    """Return the suffix of the export of a run; empty for a folder or a tracker."""
    if tracker_of(path) or path.is_dir() or not path.suffix:
        return ""
    hint = "Use .csv or .parquet, the name of a folder for TensorBoard, wandb:NAME or mlflow:NAME."
    return _ending_among(RUN_TABLES, path, "has the extension of an unsupported format", hint)


def report_ending(path: Path) -> str:
    """Return the suffix of a report of findings, which determines its format."""
    hint = "Use .sarif (SARIF 2.1.0) or .xml (JUnit)."
    error = "does not have the extension of a report"
    return _ending_among(REPORT_MARKS, path, error, hint)


def check_output(
    path: Path, force: bool = False, option: str = "--output", suffix: str = SUFFIX
) -> bool:
    """Check that ``path`` can be written; return whether it replaces a file."""
    if str(path) == "-":
        raise RequestError(
            "The output cannot be '-'.", "Give a file name: stdout is used for the summary."
        )
    if path.is_dir():
        raise RequestError(
            f"The output {path} is a folder.", f"Name a file in it: {path / f'result{suffix}'}"
        )
    target = Path(os.path.realpath(path))  # the target of a link is written; the link stays
    if target.is_symlink():
        raise RequestError(
            f"The output {path} is a symbolic link that points back to itself.",
            f"Name another file with {option}.",
        )
    folder = target.parent if path.is_symlink() else path.parent
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise RequestError(
            f"The output folder {folder} {what}.", "Create the folder first, or give another one."
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise RequestError(
            f"The output folder {folder} is not writable.",
            f"Name a file in another folder with {option}.",
        )
    if not path.exists():
        return False
    # The final rename would replace a device or a pipe.
    if not path.is_file():
        raise RequestError(
            f"The output {path} is not a regular file.", f"Name a file with {option}."
        )
    if not force and not is_hookscope_file(path, suffix):
        if suffix in _MARKLESS:
            problem = f"{path} exists, and {suffix} files do not say who wrote them."
        else:
            other = any(is_hookscope_file(path, kind) for kind in (SUFFIX, ".json"))
            what = "contains results of another kind" if other else "was not written by hookscope"
            problem = f"The file {path} exists and {what}."
        repair = f"Add --force to replace it, or name another file with {option}."
        raise RequestError(problem, repair)
    return True
