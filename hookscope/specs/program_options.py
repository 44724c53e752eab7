"""What ``run`` does with the models of a program that is not a training."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from hookscope.errors import RequestError
from hookscope.files.output_path import check_ending, check_output, recording_ending
from hookscope.specs.command_options import CaptureOptions
from hookscope.specs.edit import WEIGHTS
from hookscope.specs.intervention_spec import Interventions
from hookscope.specs.settings import same_setting, setting, spell_option
from hookscope.specs.tensor_key import (
    ATTENTION,
    GRADIENT_KINDS,
    OP,
    OUTPUT,
    VALUE_KINDS,
    resolve_kinds,
)

LAST = "last"
LIST, CAPTURE, CHECK, TRACE = "list", "capture", "check", "trace"
MODES = (LIST, CAPTURE, CHECK, TRACE)
RECORDED = {kind: kind for kind in (*VALUE_KINDS.values(), *GRADIENT_KINDS.values())}


@dataclass(frozen=True)
class CallChoice:
    """Which calls of a model are recorded, by their numbers from 1.

    >>> choice = read_calls("1,3-5,last")
    >>> [number for number in range(1, 8) if number in choice], choice.last
    ([1, 3, 4, 5], True)
    """

    ranges: tuple[tuple[int, int], ...] = ((1, sys.maxsize),)
    last: bool = False
    every: int = 1

    def __contains__(self, number: int) -> bool:
        within = any(first <= number <= last for first, last in self.ranges)
        return within and (number - 1) % self.every == 0

    def later_than(self, count: int) -> list[str]:
        """Return the parts that name only calls after the first ``count``.

        >>> read_calls("1,3-5,7").later_than(2)
        ['3-5', '7']
        """
        later = [span for span in self.ranges if span[0] > count]
        return [str(first) if first == end else f"{first}-{end}" for first, end in later]


def read_calls(text: str) -> CallChoice:
    """Read numbers of calls, such as ``1,3-5,last``.

    Raises:
        ValueError: it is not a list of numbers, ranges and ``last``.
    """
    ranges, last = [], False
    for part in text.split(","):
        word = part.strip()
        if word == LAST:
            last = True
            continue
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", word)
        first, end = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= first <= end:
            raise ValueError(
                f"{word!r} is not the number of a call. Write numbers from 1, ranges or last, such"
                " as 1,3-5,last."
            )
        ranges.append((first, end))
    return CallChoice(tuple(ranges), last)


# The options that say what to do with a training, and with the calls of any model.
_OF_TRAINING = ("stop_on", "fingerprint", "live")
_OF_MODES = {
    "stop_after": MODES,
    "force": MODES,
    "calls": (CAPTURE, CHECK, TRACE),
    "edits": ("", CAPTURE, CHECK, TRACE),
    "grad_edits": ("", CAPTURE, CHECK),
    "hooks": (CAPTURE, CHECK, TRACE),
    "hook_kind": (CAPTURE, CHECK, TRACE),
    "hook_args": (CAPTURE, CHECK, TRACE),
    "ops": (CAPTURE,),
    "attention": (CAPTURE,),
    "max_bytes": (CAPTURE,),
}


@dataclass(frozen=True)
class ProgramOptions:
    """How the models that a program calls are looked into.

    >>> ProgramOptions(capture=True, calls=read_calls("2")).mode
    'capture'
    """

    section = "Models of any program"

    list: bool = setting(False, "List the models that the program calls.", negative=False)
    capture: bool = setting(False, "Record the outputs of their layers.", negative=False)
    check: bool = setting(False, "Look for NaN, infinities and dead units in them.", negative=False)
    trace: bool = setting(False, "List the calls of their layers in order.", negative=False)
    calls: CallChoice | None = setting(
        None,
        "Calls of each model to record, such as 1,3-5,last. Default: all.",
        metavar="LIST",
        kind="calls",
        parse=read_calls,
    )
    stop_after: int | None = setting(
        None, "End the program after this many calls of models.", minimum=1, metavar="N"
    )
    every: int | None = None
    what: str | Iterable[str] | None = None
    ops: bool = same_setting(CaptureOptions, "ops", section=section)
    attention: bool = same_setting(CaptureOptions, "attention", section=section)
    max_bytes: int | None = same_setting(
        CaptureOptions,
        "max_bytes",
        section=section,
        help="Stop recording beyond this size, such as 2GB.",
    )
    force: bool = setting(
        False, "Replace a file that hookscope did not write.", section="Output", negative=False
    )

    def __post_init__(self) -> None:
        if len(chosen := [f"--{mode}" for mode in MODES if getattr(self, mode)]) > 1:
            raise RequestError(
                f"{' and '.join(chosen)} cannot be used together.", "Run the program once for each."
            )
        if self.mode and self.what is not None:
            self.kinds  # noqa: B018 - computed for its checks

    @property
    def mode(self) -> str:
        """What is done, as one of ``MODES``; empty for a training that is watched."""
        return next((mode for mode in MODES if getattr(self, mode)), "")

    def check_output(self, path: str | os.PathLike[str]) -> None:
        """Raise RequestError if the file of a mode has a wrong ending or cannot be written."""
        file, ending = Path(path), ".json"
        if self.capture:
            ending = recording_ending(file)
        else:
            check_ending(file, ending)
        check_output(file, self.force, suffix=ending)

    @property
    def kinds(self) -> set[str]:
        """The kinds of records to make."""
        traced = {kind for kind, wanted in ((OP, self.ops), (ATTENTION, self.attention)) if wanted}
        return resolve_kinds(self.what or (OUTPUT,), RECORDED) | traced

    @property
    def choice(self) -> CallChoice:
        """Which calls of each model are recorded."""
        return replace(self.calls or CallChoice(), every=self.every or 1)


def check_trainable(interventions: Interventions) -> None:
    """Raise RequestError if an edit puts other weights into a model that may be trained."""
    for edit in interventions.value_edits:
        if edit.kind == WEIGHTS:
            raise RequestError(
                f"The edit {edit.text!r} replaces weights, which an optimizer would not train.",
                "Use it with --capture, --check or --trace.",
            )


def check_mode(mode: str, given: Iterable[str]) -> None:
    """Raise RequestError if an option was given that does not belong to what is done.

    >>> check_mode("list", ["stop_after"])
    """
    for name in given:
        modes = _OF_MODES.get(name, ("",) if name in _OF_TRAINING else (mode,))
        if mode not in modes:
            here = f"with --{mode}" if mode else "when a training is watched"
            there = " or ".join(f"--{other}" for other in modes if other)
            raise RequestError(
                f"{spell_option(name)} has no effect {here}.",
                f"Use it with {there}." if there else f"Leave out {spell_option(name)}.",
            )
