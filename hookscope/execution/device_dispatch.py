"""Dispatch of a model over several devices, or over memory and disk, with accelerate."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import warnings
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.errors import EnvironmentFault, ModelError, StoreError, cause
from hookscope.files.optional_packages import optional_package
from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.hooks.layers import own_parameters
from hookscope.sources.wrappers import unwrapped
from hookscope.specs.module_names import ancestors

with optional_package("accelerate", "accelerate", "--device-map"):
    import accelerate
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module
    from accelerate.utils import get_balanced_memory, get_max_memory

log = logging.getLogger("hookscope")

DISK = "disk"
_OFFLOADED = ("cpu", DISK)  # their weights are copied to the main device for each run
_FREE = 0.9  # of a GPU's memory; the rest is for activations
# It uses the weights of its parts without calling them, so they are loaded with its own.
_USES_PARTS_DIRECTLY = "MultiheadAttention"

Device = int | str  # the number of a GPU, or cpu, mps, disk


def dispatch(
    module: nn.Module, device_map: str, max_memory: Mapping[str, int] | None
) -> torch.device:
    """Dispatch a model that is in memory to devices; return the device of its input.

    Weights that fit nowhere are written to a temporary folder, which is removed with the model.
    """
    model = unwrapped(module)
    blocks = unsplit(model)
    with _quiet():
        try:
            capacities = _capacities(model, max_memory or {})
            placement = _build_device_map(model, device_map, capacities, blocks)
            main = next(
                (device for device in placement.values() if device not in _OFFLOADED), "cpu"
            )
            weights = _weight_sizes(model, placement, main)
            folder = _offload_folder(model, weights[DISK]) if DISK in weights else None
            accelerate.dispatch_model(
                model,
                placement,
                main_device=main,
                offload_dir=folder,
                skip_keys=getattr(model, "_skip_keys_device_placement", None),
                preload_module_classes=[*blocks, _USES_PARTS_DIRECTLY],
            )
            _align_split_modules(model, placement, main)
        except (ValueError, RuntimeError, OSError, KeyError) as error:
            raise ModelError(
                f"accelerate cannot split the model ({device_map}): {cause(error).rstrip('.')}.",
                "Limit the memory of devices, as in --max-memory cuda:0=10GB, or use --device.",
            ) from error
    sizes = (f"{_device_name(device)} {size / 1e6:,.1f} MB" for device, size in weights.items())
    log.info("device map: %s", ", ".join(sizes))
    return torch.device(main)


def unsplit(model: nn.Module) -> list[str]:
    """Return the classes whose modules must stay on one device, such as residual blocks.

    Their own computations would otherwise get tensors of several devices.
    """
    named = {
        name for part in model.modules() for name in getattr(part, "_no_split_modules", ()) or ()
    }
    return sorted(named or set(_blocks(model)))


def _blocks(parent: nn.Module) -> Iterator[str]:
    children = [child for child in parent.children() if next(child.children(), None) is not None]
    kinds = Counter(map(type, children))
    for child in children:
        standalone = not _is_list(parent) and kinds[type(child)] <= 2
        if _is_list(child) or (standalone and _holds_stack(child)):
            yield from _blocks(child)
        else:
            yield type(child).__name__


def _is_list(module: nn.Module) -> bool:
    """Whether a module has no ``forward`` of its own that calls its parts."""
    return type(module).forward in (nn.Sequential.forward, nn.Module.forward)


def _holds_stack(module: nn.Module) -> bool:
    for part in filter(_is_list, module.modules()):
        parts = (child for child in part.children() if not _is_list(child))
        kinds = Counter(type(child) for child in parts if next(child.children(), None) is not None)
        if max(kinds.values(), default=0) > 1:
            return True
    return False


def _capacities(model: nn.Module, limits: Mapping[str, int]) -> dict[Device, int]:
    """The bytes of weights that each device can take."""
    capacities: dict[Device, int] = dict(get_max_memory())
    names = {_device_name(device): device for device in capacities}
    for name in limits.keys() - names.keys():
        raise EnvironmentFault(
            f"This machine has no device {name}.", f"--max-memory accepts {', '.join(names)}."
        )
    for device in capacities:
        if device == "cpu":
            capacities[device] += sum(
                tensor.nbytes for tensor in chain(model.parameters(), model.buffers())
            )
        else:
            capacities[device] = int(capacities[device] * _FREE)
    return capacities | {names[name]: size for name, size in limits.items()}


def _build_device_map(
    model: nn.Module, device_map: str, capacities: dict[Device, int], blocks: list[str]
) -> dict[str, Device]:
    """The device of each part of the model, in the order of the parts."""
    if device_map != "sequential":
        low = device_map == "balanced_low_0"
        capacities = get_balanced_memory(
            model, capacities, no_split_module_classes=blocks, low_zero=low
        )
    placement = accelerate.infer_auto_device_map(model, capacities, no_split_module_classes=blocks)
    if placement.get("") == DISK:  # accelerate would write nothing for this name
        parts = chain(own_parameters(model).items(), model.named_children())
        return dict.fromkeys((name for name, _ in parts), DISK)
    return dict(placement)


def _weight_sizes(
    model: nn.Module, placement: dict[str, Device], main: Device
) -> dict[Device, int]:
    """The bytes of weights on each device."""
    sizes: dict[Device, int] = dict.fromkeys(placement.values(), 0)
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        device = next(
            (placement[path] for path in ("", *ancestors(name), name) if path in placement), main
        )
        sizes[device] = sizes.get(device, 0) + tensor.nbytes
    return sizes


def _offload_folder(model: nn.Module, size: int) -> str:
    """A folder for the weights on disk, which is removed with the model."""
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < size:
        raise StoreError(
            f"{size:,} bytes of weights do not fit on any device, and {tempfile.gettempdir()} has"
            f" only {free:,} bytes free.",
            "Set TMPDIR to a folder on a larger disk.",
        )
    folder = tempfile.mkdtemp(prefix="hookscope-weights-")
    weakref.finalize(model, _remove, folder, os.getpid())
    return folder


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not in forked processes that read inputs
        shutil.rmtree(folder, ignore_errors=True)


def _align_split_modules(model: nn.Module, placement: dict[str, Device], main: Device) -> None:
    """Move the tensors of split modules to their devices, which accelerate does not do."""
    if not hasattr(model, "_hf_hook"):  # all is on one device
        return
    for path, device in placement.items():
        for name in ancestors(path):
            owner = model.get_submodule(name)
            parts: list[Tensor] = [*own_parameters(owner).values(), *owner.buffers(recurse=False)]
            if parts and not hasattr(owner, "_hf_hook"):
                target = main if device in _OFFLOADED else device
                skipped = getattr(model, "_skip_keys_device_placement", None)
                add_hook_to_module(
                    owner, AlignDevicesHook(execution_device=target, skip_keys=skipped)
                )


def _device_name(device: Device) -> str:
    return str(torch.device(device)) if isinstance(device, int) else device


@signal_safe_contextmanager
def _quiet() -> Iterator[None]:
    """Hide the messages of accelerate."""
    logger: Any = logging.getLogger("accelerate")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
