"""What was asked for and is not in the files: layers that never ran, values that do not exist."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hookscope.results.records import Recording

NEVER_RAN = "never ran"


@dataclass(frozen=True)
class Missing:
    """Something of a layer that one file has not, and why.

    Attributes:
        letter: of the file; empty where there is one only.
        module: name of the layer.
        type: its class name.
        call: which call of it; None for a layer that never ran.
        what: ``weight.grad``, say; empty for a layer that never ran.
        told: a clause: ``never ran in A: a container``.
    """

    letter: str
    module: str
    type: str
    call: int | None
    what: str
    told: str


def missing_in(captures: Sequence[Recording], letters: Sequence[str]) -> Iterator[Missing]:
    """Yield what is missing of each file: first the layers that never ran, in order of the tree."""
    for capture, letter in zip(captures, letters, strict=True):
        where = f" in {letter}" if letter else ""
        for one in capture.coverage.silent:
            told = f"{NEVER_RAN}{where}: {one.reason}"
            yield Missing(letter, one.module, one.type, None, "", told)
        for absent in capture.absent:
            told = f"does not exist{where}: {absent.reason}"
            place = (absent.module, absent.type, absent.call, absent.what)
            yield Missing(letter, *place, told)
