"""Weights from a file into a module. Nothing is ever unpickled into code."""

from __future__ import annotations

import logging
import pickle
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from hookscope import filekinds, spec
from hookscope.errors import WeightsError
from hookscope.filehash import sha256_of
from hookscope.sources.loaded import WeightsInfo, WeightsWord
from hookscope.suggest import did_you_mean

log = logging.getLogger("hookscope")

_WRAPPED_UNDER = ("state_dict", "model_state_dict", "model")
_WRAPPERS = re.compile(r"(?:(?<=\.)|^)(_orig_mod|_fsdp_wrapped_module)\.")
_SAVE_THUS = "Save the weights alone: torch.save(model.state_dict(), FILE)."
_KINDS = "Weights are read from a .safetensors, .pth or .pt file."
# What the first bytes tell to be no weights, and what to do about it.
_NO_WEIGHTS = {
    filekinds.EMPTY: filekinds.AGAIN,
    filekinds.CUT_OFF: filekinds.AGAIN,
    filekinds.CUT_PICKLE: filekinds.AGAIN,
    filekinds.CUT_SAFETENSORS: filekinds.AGAIN,
    filekinds.IMAGE: "Give it as the input: --input {0}",
    filekinds.SCRIPT_ARCHIVE: f"This version does not read weights out of one. {_SAVE_THUS}",
    filekinds.EXPORT_ARCHIVE: f"This version does not read weights out of one. {_SAVE_THUS}",
    filekinds.ONNX: f"This version does not read weights out of one. {_KINDS}",
}


def load_file_into(module: nn.Module, wanted: WeightsWord) -> WeightsInfo:
    """Load a file of weights into ``module`` and say what did not fit.

    Prefixes of wrappers are taken off the names, then those of ``wanted.rename`` are replaced: for
    each name the longest that it begins with.

    Raises:
        RequestError: there is no such file, or it is a folder.
        WeightsError: the file cannot be read, holds no weights, or none that fit.
    """
    path = wanted.word
    spec.check_weights_file(path)
    own = module.state_dict(keep_vars=True)
    tensors = _renamed(_read(path), wanted.rename, path)
    tensors, stripped = _unwrap_names(tensors, own, path)
    if wanted.partial:
        tensors = _fitting(tensors, own, path)
    if not own.keys() & tensors.keys():
        raise WeightsError(
            f"No name in {path!r} is one of the model's: it holds {_some(tensors)}, "
            f"and the model has {_some(own)}.",
            "Give the weights of this very model.",
        )
    try:
        missing, unexpected = module.load_state_dict(tensors, strict=False)
    except RuntimeError as exc:
        lines = [line.strip() for line in str(exc).splitlines()[1:]]
        raise WeightsError(
            f"The weights in {path!r} do not fit the model: {' '.join(lines[:3])}",
            f"{_tensors(len(lines), 'differs', 'differ')} in shape; was the model built with other"
            " arguments? --partial takes those that fit.",
        ) from exc
    loaded = {id(own[name]) for name in tensors if name in own}
    missing = [name for name in missing if id(own[name]) not in loaded]  # tied to one that was read
    _report(path, missing, unexpected, stripped)
    return WeightsInfo(path, sha256_of(path), tuple(missing), tuple(unexpected), stripped)


def _read(path: str) -> dict[str, Tensor]:
    kind, _ = filekinds.describe_file(path)
    if kind in _NO_WEIGHTS:
        raise WeightsError(
            f"The file {path!r} is {kind}, not weights.", _NO_WEIGHTS[kind].format(path)
        )
    if kind == filekinds.SAFETENSORS:
        try:
            return load_file(path)
        except (SafetensorError, OSError) as exc:
            raise WeightsError(
                f"The file {path!r} is no sound safetensors file: {spec.ended(str(exc))}",
                filekinds.AGAIN,
            ) from exc
    content = _read_pickled(path)
    while isinstance(content, Mapping):
        tensors = {str(key): v for key, v in content.items() if isinstance(v, Tensor)}
        inner = [content[key] for key in _WRAPPED_UNDER if isinstance(content.get(key), Mapping)]
        if tensors and not inner:
            return tensors
        content = inner[0] if inner else None
    raise WeightsError(f"The file {path!r} holds no weights by name.", _SAVE_THUS)


def _read_pickled(path: str) -> Any:
    """What PyTorch's own reader makes of it, which builds tensors and plain values alone."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks about how the file was pickled
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as exc:
        found = re.search(r"GLOBAL ([\w.]+)", str(exc))
        holds = f"Python objects ({found[1]})" if found else "more than tensors"
        message = f"The file {path!r} holds {holds}, which hookscope does not unpickle."
        raise WeightsError(message, _SAVE_THUS) from exc
    except Exception as exc:  # of a damaged file the reader raises nearly anything
        kind, _ = filekinds.describe_file(path)
        raise WeightsError(
            f"The weights in {path!r} cannot be read: the file looks like {kind}.",
            f"{filekinds.AGAIN} {_KINDS}",
        ) from exc


def _unwrap_names(
    tensors: dict[str, Tensor], known: Iterable[str], path: str
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The tensors under their names without the prefixes of wrappers, and which those were."""
    own = set(known)
    stripped: dict[str, None] = {}
    names = dict.fromkeys(tensors)
    plain = {name: name for name in names}
    for name in names:
        if name not in own:
            for wrapper in _WRAPPERS.findall(name):
                stripped[f"{wrapper}."] = None
            plain[name] = _WRAPPERS.sub("", name)
    # A data-parallel wrapper stands before every name; a model may have a module of that name too.
    while all(name.startswith("module.") for name in plain.values()) and own.isdisjoint(
        plain.values()
    ):
        stripped["module."] = None
        plain = {name: short.removeprefix("module.") for name, short in plain.items()}
    if len({*plain.values()}) < len(plain):
        raise WeightsError(
            f"Without the prefixes {' '.join(stripped)} two names in {path!r} are the same.",
            "Save the state dict of the model inside its wrapper.",
        )
    return {plain[name]: tensor for name, tensor in tensors.items()}, tuple(stripped)


def _renamed(
    tensors: dict[str, Tensor], rename: Iterable[tuple[str, str]], path: str
) -> dict[str, Tensor]:
    """The tensors under the names that ``--rename`` gives them; whole parts of names count."""
    pairs = sorted(rename, key=lambda pair: len(pair[0]), reverse=True)
    used: set[str] = set()
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        for old, new in pairs:
            if not old or name == old or name.startswith(f"{old}."):
                used.add(old)
                rest = name.removeprefix(old).removeprefix(".")
                name = ".".join(part for part in (new, rest) if part)
                break
        if name in found:
            raise WeightsError(
                f"With --rename two tensors in {path!r} are called {name!r}.",
                "Give each prefix a name of its own.",
            )
        found[name] = tensor
    for old, _ in pairs:
        if old not in used:
            raise WeightsError(
                f"No name in {path!r} begins with {old!r}: it holds {_some(tensors)}.",
                did_you_mean(old, {name.partition(".")[0] for name in tensors})
                or "Whole parts of names count, as in --rename backbone=features.",
            )
    return found


def _fitting(tensors: dict[str, Tensor], own: Mapping[str, Tensor], path: str) -> dict[str, Tensor]:
    """The tensors whose shapes are the model's; says which are left out."""
    misfits = [
        f"{name} ({_lengths(tensor)} for {_lengths(own[name])})"
        for name, tensor in tensors.items()
        if name in own and tensor.shape != own[name].shape
    ]
    if misfits:
        log.warning("weights: left out for their shape (in %s): %s", path, _some(misfits))
    return {n: t for n, t in tensors.items() if n not in own or t.shape == own[n].shape}


def _lengths(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "one number"


def _report(
    path: str, missing: list[str], unexpected: list[str], stripped: tuple[str, ...]
) -> None:
    if stripped:
        log.info("weights: took %s off the names in %s", " and ".join(stripped), path)
    if missing:
        log.warning(
            "weights: %d of the model's tensors %s not in %s and %s as built: %s",
            len(missing),
            "is" if len(missing) == 1 else "are",
            path,
            "stays" if len(missing) == 1 else "stay",
            _some(missing),
        )
    if unexpected:
        log.warning(
            "weights: %s not the model's (in %s): %s",
            _tensors(len(unexpected), "is", "are"),
            path,
            _some(unexpected),
        )


def _tensors(count: int, one: str, many: str) -> str:
    return f"1 tensor {one}" if count == 1 else f"{count} tensors {many}"


def _some(names: Iterable[str], count: int = 3) -> str:
    names = list(names)
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more
