"""How a model runs: seed, dtype, device, and its distribution over several devices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hookscope.errors import RequestError
from hookscope.specs.choices import DEVICE_MAPS, DTYPES, check_choice
from hookscope.specs.model_spec import EXPORTED, TORCHSCRIPT

_DEVICE = re.compile(r"auto|(cpu|cuda|mps)(:\d{1,2})?")
_DEVICE_WITH_MEMORY = re.compile(r"cpu|mps|cuda:\d+")


@dataclass(frozen=True)
class RunOptions:
    """How the model runs."""

    seed: int = 0
    dtype: str | None = None
    device: str | None = None
    device_map: str | None = None
    max_memory: Mapping[str, int] | None = None
    train: bool = False
    generate: int | None = None

    def __post_init__(self) -> None:
        seed: object = self.seed
        if not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise RequestError(
                f"{seed!r} is not a valid seed.", "Give a whole number from 0 to 2**63 - 1."
            )
        if self.dtype is not None and self.dtype not in DTYPES:
            raise RequestError(f"{self.dtype!r} is not a valid dtype.", f"Use {', '.join(DTYPES)}.")
        # In Python it may be a torch.device, whose text is its name.
        if self.device is not None and not _DEVICE.fullmatch(str(self.device)):
            raise RequestError(
                f"{str(self.device)!r} is not a valid device.", "Use cpu, cuda, mps or auto."
            )


def check_device_map(
    device_map: str | None, max_memory: Mapping[str, int] | None, device: str | None, source: str
) -> None:
    """Raise RequestError if an option contradicts a device map."""
    if device_map is None:
        if max_memory:
            raise RequestError(
                "--max-memory needs --device-map.",
                "Add --device-map auto.",
            )
        return
    check_choice("--device-map", device_map, DEVICE_MAPS)
    if device is not None:
        raise RequestError(
            f"--device {device} uses one device, but --device-map uses several.",
            "Leave out one of them. HOOKSCOPE_DEVICE counts as --device.",
        )
    for name in max_memory or ():
        if not _DEVICE_WITH_MEMORY.fullmatch(name):
            raise RequestError(
                f"{name!r} is not a valid device for --max-memory.", "Use cuda:0, mps or cpu."
            )
    if source in (TORCHSCRIPT, EXPORTED):
        kind = "A scripted" if source == TORCHSCRIPT else "An exported"
        raise RequestError(
            f"{kind} model is bound to the device in its code and cannot be split across several.",
            "Use --device, or give the Python code that made it: FILE.py:NAME.",
        )
