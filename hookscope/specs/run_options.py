"""Demands on single words, the same wherever a keyword takes one of a few."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from hookscope.errors import RequestError
from hookscope.specs.choices import DEVICE_MAPS
from hookscope.specs.model_spec import EXPORTED, TORCHSCRIPT

_DEVICE = re.compile(r"cpu|mps|cuda:\d+")


def check_choice(keyword: str, word: str, known: Iterable[str]) -> None:
    """Raise RequestError if ``word`` is not among those that ``keyword`` takes."""
    if word not in known:
        raise RequestError(
            f"{word!r} is no value of {keyword}.", f"Choose among {', '.join(known)}."
        )


def check_device_map(
    device_map: str | None, max_memory: Mapping[str, int] | None, device: str | None, source: str
) -> None:
    """Refuse what does not go with a model that is spread over devices.

    Args:
        device_map: how it is to be spread; None for not at all.
        max_memory: bytes by device.
        device: the one device that it is to run on.
        source: where the model comes from.

    Raises:
        RequestError: they do not go together, or a word is wrong.
    """
    if device_map is None:
        if max_memory:
            raise RequestError(
                "--max-memory is for a model that is spread over devices.",
                "Add --device-map auto.",
            )
        return
    check_choice("--device-map", device_map, DEVICE_MAPS)
    if device is not None:
        raise RequestError(
            f"--device {device} puts the model on one device, and --device-map on several.",
            "Give one of them; HOOKSCOPE_DEVICE counts as --device.",
        )
    for name in max_memory or ():
        if not _DEVICE.fullmatch(name):
            raise RequestError(f"{name!r} is no device of --max-memory.", "Use cuda:0, mps or cpu.")
    if source in (TORCHSCRIPT, EXPORTED):
        kind = "A scripted" if source == TORCHSCRIPT else "An exported"
        raise RequestError(
            f"{kind} model is bound to the device in its code, and cannot be spread over several.",
            "Use --device, or give the Python code that made it: FILE.py:NAME.",
        )
