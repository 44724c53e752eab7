"""A model spread over several devices, or over memory and a disk, by accelerate."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import warnings
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.errors import EnvironmentFault, ModelError, StoreError, cause
from hookscope.sources.wrappers import unwrapped
from hookscope.tensors.interrupts import signal_safe_contextmanager

try:
    import accelerate
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module
    from accelerate.utils import get_balanced_memory, get_max_memory
except ModuleNotFoundError as exc:
    if exc.name != "accelerate":
        raise
    raise EnvironmentFault(
        "--device-map needs the package accelerate, which is not installed.",
        'Install it: python -m pip install "hookscope[accelerate]"',
    ) from exc

log = logging.getLogger("hookscope")

DISK = "disk"
_OFFLOADED = ("cpu", DISK)  # what lies there is brought to the main device when it runs
_FREE = 0.9  # of a GPU's memory; the rest is for what the model computes
# It takes the weights of its parts without calling them, so that they are to come with its own.
_TAKES_ITS_PARTS = "MultiheadAttention"

Place = int | str  # the number of a GPU, or cpu, mps, disk


def dispatch(
    module: nn.Module, device_map: str, max_memory: Mapping[str, int] | None
) -> torch.device:
    """Spread a model, which lies in memory, over devices; return where it takes its input.

    What does not fit into memory is written to a temporary folder, which goes with the model.

    Args:
        module: a model that is ours to change.
        device_map: ``auto``, ``balanced``, ``balanced_low_0`` or ``sequential``, as accelerate and
            transformers have them.
        max_memory: bytes of weights that a device may take at most, by ``cpu``, ``mps`` or
            ``cuda:0``; others take what is free.

    Raises:
        EnvironmentFault: there is no such device.
        StoreError: what goes to a disk does not fit there.
        ModelError: accelerate cannot spread it.
    """
    model = unwrapped(module)
    blocks = unsplit(model)
    with _quiet():
        try:
            places = _plan(model, device_map, _room(model, max_memory or {}), blocks)
            main = next((one for one in places.values() if one not in _OFFLOADED), "cpu")
            weights = _weights(model, places, main)
            folder = _folder(model, weights[DISK]) if DISK in weights else None
            accelerate.dispatch_model(
                model,
                places,
                main_device=main,
                offload_dir=folder,
                skip_keys=getattr(model, "_skip_keys_device_placement", None),
                preload_module_classes=[*blocks, _TAKES_ITS_PARTS],
            )
            _place_rest(model, places, main)
        except (ValueError, RuntimeError, OSError, KeyError) as error:
            raise ModelError(
                f"accelerate cannot spread the model ({device_map}): {cause(error).rstrip('.')}.",
                "Let devices take less: --max-memory cuda:0=10GB, or use --device.",
            ) from error
    told = (f"{_name(place)} {size / 1e6:,.1f} MB" for place, size in weights.items())
    log.info("device map: %s", ", ".join(told))
    return torch.device(main)


def unsplit(model: nn.Module) -> list[str]:
    """The classes whose modules are to stay on one device whole: residual blocks, for instance.

    What they compute beside their parts would get tensors of several devices otherwise. Models of
    transformers name them. In others a module may be split if it runs its parts one after another
    (a ``Sequential``, a ``ModuleList``), and so may what holds a stack, two or more blocks of one
    class in such a list, unless there are more than two of its class side by side; every other
    module with parts may not.

    >>> layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> unsplit(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    ['TransformerEncoderLayer']
    """
    named = {
        name for part in model.modules() for name in getattr(part, "_no_split_modules", ()) or ()
    }
    return sorted(named or set(_blocks(model)))


def _blocks(parent: nn.Module) -> Iterator[str]:
    children = [child for child in parent.children() if next(child.children(), None) is not None]
    kinds = Counter(map(type, children))
    for child in children:
        alone = not _is_list(parent) and kinds[type(child)] <= 2
        if _is_list(child) or (alone and _holds_stack(child)):
            yield from _blocks(child)
        else:
            yield type(child).__name__


def _is_list(module: nn.Module) -> bool:
    """Whether a module has no code of its own that runs its parts."""
    return type(module).forward in (nn.Sequential.forward, nn.Module.forward)


def _holds_stack(module: nn.Module) -> bool:
    for part in filter(_is_list, module.modules()):
        own = (one for one in part.children() if not _is_list(one))
        kinds = Counter(type(one) for one in own if next(one.children(), None) is not None)
        if max(kinds.values(), default=0) > 1:
            return True
    return False


def _room(model: nn.Module, told: Mapping[str, int]) -> dict[Place, int]:
    """Bytes of weights that each device can take."""
    room: dict[Place, int] = dict(get_max_memory())
    names = {_name(place): place for place in room}
    for name in told.keys() - names.keys():
        raise EnvironmentFault(
            f"There is no {name} here.", f"--max-memory takes {', '.join(names)}."
        )
    for place in room:
        room[place] = int(room[place] * _FREE) if place != "cpu" else room[place] + _bytes(model)
    return room | {names[name]: size for name, size in told.items()}


def _plan(
    model: nn.Module, device_map: str, room: dict[Place, int], blocks: list[str]
) -> dict[str, Place]:
    """Which device each part of the model goes to, in the order of the parts."""
    if device_map != "sequential":
        low = device_map == "balanced_low_0"
        room = get_balanced_memory(model, room, no_split_module_classes=blocks, low_zero=low)
    found = accelerate.infer_auto_device_map(model, room, no_split_module_classes=blocks)
    if found.get("") == DISK:  # nothing would be written by this name
        parts = chain(model.named_parameters(recurse=False), model.named_children())
        return dict.fromkeys((name for name, _ in parts), DISK)
    return dict(found)


def _weights(model: nn.Module, places: dict[str, Place], main: Place) -> dict[Place, int]:
    """Bytes of weights on each device."""
    sizes: dict[Place, int] = dict.fromkeys(places.values(), 0)
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        above = accumulate(name.split("."), lambda path, part: f"{path}.{part}")
        place = next((places[path] for path in ("", *above) if path in places), main)
        sizes[place] = sizes.get(place, 0) + tensor.nbytes
    return sizes


def _folder(model: nn.Module, size: int) -> str:
    """A folder for what goes to the disk, which is there as long as the model."""
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < size:
        raise StoreError(
            f"{size:,} bytes of weights fit on no device, and {tempfile.gettempdir()} has no room"
            f" for them ({free:,} bytes).",
            "Set TMPDIR to a folder on a larger disk.",
        )
    folder = tempfile.mkdtemp(prefix="hookscope-weights-")
    weakref.finalize(model, _remove, folder, os.getpid())
    return folder


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # and no process that reads inputs, forked from it
        shutil.rmtree(folder, ignore_errors=True)


def _place_rest(model: nn.Module, places: dict[str, Place], main: Place) -> None:
    """Bring tensors of modules that were split, which accelerate leaves where they are."""
    if not hasattr(model, "_hf_hook"):  # one device has all
        return
    for path, place in places.items():
        for name in accumulate(path.split(".")[:-1], lambda path, part: f"{path}.{part}"):
            owner = model.get_submodule(name)
            own: list[Tensor] = [*owner.parameters(recurse=False), *owner.buffers(recurse=False)]
            if own and not hasattr(owner, "_hf_hook"):
                there = main if place in _OFFLOADED else place
                skipped = getattr(model, "_skip_keys_device_placement", None)
                add_hook_to_module(
                    owner, AlignDevicesHook(execution_device=there, skip_keys=skipped)
                )


def _bytes(model: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in chain(model.parameters(), model.buffers()))


def _name(place: Place) -> str:
    return str(torch.device(place)) if isinstance(place, int) else place


@signal_safe_contextmanager
def _quiet() -> Iterator[None]:
    """Keep remarks of accelerate to itself; what matters is told by us."""
    logger: Any = logging.getLogger("accelerate")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
