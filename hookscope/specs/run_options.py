"""How a model runs: seed, dtype, device, and its distribution over several devices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hookscope.errors import RequestError
from hookscope.specs import choices
from hookscope.specs.model_spec import EXPORTED, TORCHSCRIPT
from hookscope.specs.settings import setting
from hookscope.specs.value_readers import read_memory

_DEVICE = re.compile(r"auto|(cpu|cuda|mps)(:\d{1,2})?")
_DEVICE_WITH_MEMORY = re.compile(r"cpu|mps|cuda:\d+")


def _names_device(value: Any) -> bool:
    """Whether it is a device, such as ``cuda:1``; in Python it may be a torch.device."""
    return _DEVICE.fullmatch(str(value)) is not None


@dataclass(frozen=True)
class RunOptions:
    """How the model runs."""

    section = "Run"

    seed: int = setting(
        0,
        "Seed for weights, noise and dropout.",
        metavar="N",
        shared="HOOKSCOPE_SEED",
        python="of random weights, noise and dropout.",
    )
    dtype: str | None = setting(
        None,
        f"Dtype of weights and input: {', '.join(choices.DTYPES)}. Default: the model's.",
        metavar="DTYPE",
        choices=choices.DTYPES,
        aliases=choices.DTYPE_ALIASES,
        python="``float32``, ``float64``, ``float16`` or ``bfloat16``: of the model and its input.",
    )
    device: str | None = setting(
        None,
        "Device to run on; auto uses a GPU if there is one. Default: cpu.",
        choices=choices.DEVICES,
        also=_names_device,
        aliases=choices.DEVICE_ALIASES,
        shared="HOOKSCOPE_DEVICE",
        python="``cpu``, ``cuda``, ``mps`` or ``auto``.",
    )
    device_map: str | None = setting(
        None,
        "Split the model across GPUs, CPU memory and disk (requires accelerate):"
        f" {', '.join(choices.DEVICE_MAPS)}.",
        metavar="MAP",
        choices=choices.DEVICE_MAPS,
        python="instead of ``device``, how accelerate splits a model that is too large for one:"
        " ``auto``, ``balanced``, ``balanced_low_0`` or ``sequential``.",
    )
    max_memory: Mapping[str, int] | None = setting(
        None,
        "Maximum weight memory with --device-map, such as cuda:0=10GB. Repeatable.",
        metavar="DEVICE=SIZE",
        collect=read_memory,
        python="maximum bytes of weights per device, for ``device_map``, such as"
        ' ``{"cuda:0": 10**10}``; other devices get up to their free memory.',
    )
    train: bool = setting(False, "Run in training mode; buffers are restored afterwards.")
    generate: int | None = setting(
        None,
        "Generate N tokens greedily with a language model.",
        metavar="N",
        minimum=1,
        python="greedily generate this number of tokens with a language model's own ``generate``."
        " Every step has its own call number: ``lm_head:2/output``.",
    )

    def __post_init__(self) -> None:
        seed: object = self.seed
        if not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise RequestError(
                f"{seed!r} is not a valid seed.", "Give a whole number from 0 to 2**63 - 1."
            )
        if self.dtype is not None and self.dtype not in choices.DTYPES:
            raise RequestError(
                f"{self.dtype!r} is not a valid dtype.", f"Use {', '.join(choices.DTYPES)}."
            )
        if self.device is not None and not _names_device(self.device):
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
    choices.check_choice("--device-map", device_map, choices.DEVICE_MAPS)
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
