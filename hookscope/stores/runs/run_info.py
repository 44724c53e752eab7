"""What a run folder says about the run as a whole: ``run.json``, typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

from hookscope.errors import ResultsFileError, cause
from hookscope.files import strict_json
from hookscope.files.atomic_files import write_text
from hookscope.files.output_path import RUN_FILE as RUN_FILE
from hookscope.files.own_folder import check_own
from hookscope.files.strict_json import fields_type_error, type_error
from hookscope.specs.patterns import MODEL, ROOT

SERIES_FILE = "series.jsonl"
EVENTS_FILE = "events.jsonl"
SCHEMA = 1

# ``running`` is also what a run says that was killed: nothing could be written any more.
Status = Literal["running", "finished", "failed", "interrupted", "stopped"]


class LayerInfo(TypedDict):
    """A watched module: its dotted name, ``.`` for the model, and its class."""

    name: str
    type: str


class RunModel(TypedDict):
    """A model that was found.

    ``name`` is that of the variable of the script if it was found, else that of the class.
    ``layers`` are in the order of their definition. ``layout`` is ``sharded`` if each rank
    holds a part of each parameter, else ``whole``.
    """

    name: str
    type: str
    parameters: int
    layers: list[LayerInfo]
    layout: Literal["whole", "sharded"]


class OptimizerInfo(TypedDict):
    """An optimizer that was found; ``models`` are the names of those whose parameters it has."""

    name: str
    type: str
    groups: int
    models: list[str]


class Unwatched(TypedDict):
    """What was not watched, and why: each a phrase."""

    what: str
    reason: str


# How the losses of several backward passes of a step are combined; empty if each step had one.
LossRule = Literal["", "mean", "sum"]


class _LaterInfo(TypedDict, total=False):
    """What runs of older versions do not say."""

    loss: LossRule


class RunInfo(_LaterInfo):
    """The content of ``run.json``.

    ``every`` is the distance of sampled steps, or None for the default schedule. ``started`` is a
    time in UTC, in ISO 8601.
    """

    schema: int
    status: Status
    script: str
    arguments: list[str]
    started: str
    seconds: float
    steps: int
    exit_status: int | None
    every: int | None
    layers: list[str]
    rank: int
    world_size: int
    versions: dict[str, str]
    models: list[RunModel]
    optimizers: list[OptimizerInfo]
    unwatched: list[Unwatched]
    incomplete: str


class RunEvent(NamedTuple):
    """What a script was stopped at, a line of ``events.jsonl``."""

    step: int
    kind: str
    phase: str
    model: str
    layer: str
    call: int
    message: str
    file: str = ""


def place_of(event: RunEvent, info: RunInfo) -> str:
    """Return where in its step a script was stopped: ``backward, layer fc, call 1``."""
    model = event.model and len(info["models"]) > 1 and f"model {event.model}"
    layer = event.layer and f"layer {MODEL if event.layer == ROOT else event.layer}"
    return ", ".join(
        part for part in (event.phase, model, layer, event.call and f"call {event.call}") if part
    )


def write_info(folder: Path, info: RunInfo) -> None:
    """Replace ``run.json``."""
    write_text(folder / RUN_FILE, json.dumps(info, indent=1))


def read_info(folder: Path) -> RunInfo:
    """Read ``run.json``."""
    path = folder / RUN_FILE
    try:
        content = strict_json.loads(check_own(path, folder).read_bytes())
    except FileNotFoundError as error:
        raise ResultsFileError(
            f"The folder {str(folder)!r} contains no training run: it has no {RUN_FILE}.",
            "Name the folder that 'hookscope run' wrote.",
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ResultsFileError(
            f"{path} cannot be read: {cause(error)}.",
            "Name the folder that 'hookscope run' wrote.",
        ) from error
    if isinstance(content, dict) and content.get("schema", SCHEMA) != SCHEMA:
        raise ResultsFileError(
            f"{path} has the schema {content['schema']}, which this version does not read.",
            "Upgrade hookscope.",
        )
    if error_text := type_error(content, RunInfo, RUN_FILE):
        raise ResultsFileError(f"{path} is damaged: {error_text}.", "Run the script again.")
    info: RunInfo = content
    return info


def read_lines(path: Path, kind: Any) -> list[Any]:
    """Return the complete lines of a JSON-lines file as tuples of ``kind``."""
    try:
        lines = (
            check_own(path, path.parent).read_bytes().split(b"\n")[:-1]
        )  # what follows the last line end is unfinished
    except FileNotFoundError:
        return []  # nothing was written yet
    except OSError as error:
        raise ResultsFileError(f"{path} cannot be read: {cause(error)}.") from error
    return [_parse_line(line, kind, f"{path}, line {n}") for n, line in enumerate(lines, start=1)]


def _parse_line(line: bytes, kind: Any, place: str) -> Any:
    try:
        values = strict_json.loads(line)
        if not isinstance(values, list):
            raise ValueError("it is not a list")
        entry = kind(*values)
        if problem := fields_type_error(entry._asdict(), kind, kind.__name__):
            raise ValueError(problem)
    except (ValueError, TypeError, RecursionError) as error:
        raise ResultsFileError(
            f"{place} is damaged: {cause(error)}.", "Run the script again."
        ) from error
    return entry
