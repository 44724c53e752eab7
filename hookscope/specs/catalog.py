"""The bundled list of torchvision's models, so that naming one needs neither torch nor torchvision.

``catalog.json`` beside this file is made by ``python -m tools.catalog``. Where another release of
torchvision is installed, torchvision itself is asked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import cast

from hookscope.errors import ModelError, RequestError
from hookscope.specs.model_spec import (
    PLUGIN,
    TIMM,
    TORCHVISION,
    TRANSFORMERS,
    ModelSpec,
    check_weights_file,
    is_weights_file,
    parse_model,
    reject_path,
)
from hookscope.specs.patterns import compile_pattern
from hookscope.specs.suggestions import did_you_mean

FILE = Path(__file__).with_name("catalog.json")


@dataclass(frozen=True)
class ModelInfo:
    """One model that can be named.

    Attributes:
        name: the word for it.
        task: ``classification``, ``detection``, ``segmentation``, ``video``, ``optical flow`` or
            ``quantized``.
        parameters: how many numbers its parameters hold, as built without pretrained weights; None
            for models of timm, which would have to be built for that.
        weights: names of the pretrained weights, in the order of torchvision; of timm the tags,
            which follow the name: ``timm:resnet18.a1_in1k``.
        input: shape of the tensor it is given, ``1x3x224x224``; detection takes a list of
            ``3x320x320`` (of any size), optical flow two.
    """

    name: str
    task: str
    parameters: int | None
    weights: tuple[str, ...]
    input: str


@cache
def bundled_models() -> tuple[ModelInfo, ...]:
    """Return the models of the release that the list was made for, whatever is installed."""
    rows = json.loads(FILE.read_text(encoding="utf-8"))["models"]
    return tuple(ModelInfo(**{**row, "weights": tuple(row["weights"])}) for row in rows)


@cache
def list_is_current() -> bool:
    """Whether the installed torchvision is of the release (0.29, say) the list was made for."""
    from importlib import metadata  # 30 ms that completion need not wait for

    try:
        installed = metadata.version("torchvision")
    except metadata.PackageNotFoundError:
        return False
    made_for = json.loads(FILE.read_text(encoding="utf-8"))["torchvision"]
    return bool(installed.split(".")[:2] == made_for.split(".")[:2])


def known_models(source: str = TORCHVISION) -> tuple[ModelInfo, ...]:
    """Return the models that the installed torchvision, or timm, can build, in order of name.

    Raises:
        EnvironmentFault: the package is missing or does not match torch.
    """
    if source == TORCHVISION and list_is_current():
        return bundled_models()
    # By name, since this file is torch-free and that one is not.
    live = import_module(f"hookscope.sources.{source}").live
    return cast("tuple[ModelInfo, ...]", live())


def models(pattern: str = "*", *, task: str | None = None) -> list[ModelInfo]:
    """Return the models of torchvision or timm whose name matches ``pattern``.

    Args:
        pattern: a glob over names, such as ``resnet*`` or ``{vit,swin}*``; after ``timm:`` one over
            the names of timm, which is then imported.
        task: ``classification``, ``detection``, ``segmentation``, ``video``, ``optical flow`` or
            ``quantized``; None for any.

    Raises:
        ModelError: nothing matches.

    Example:
        >>> import hookscope
        >>> [m.name for m in hookscope.models("resnet{18,34}")]
        ['resnet18', 'resnet34']
    """
    matches = compile_pattern(pattern)
    every = known_models(TIMM if pattern.startswith(f"{TIMM}:") else TORCHVISION)
    found = [m for m in every if matches(m.name) and task in (None, m.task)]
    if not found:
        tasks = ", ".join(sorted({m.task for m in every}))
        raise ModelError(
            f"No model matches {pattern!r}" + (f" with the task {task!r}." if task else "."),
            f"'hookscope models' lists all names. The tasks are {tasks}.",
        )
    return found


def check_model_spec(word: str) -> ModelSpec:
    """Take a model's word apart and refuse, without torch, one that cannot be right.

    Raises:
        ModelError: the word names no file, source or model. A name is judged here only when the
            bundled list is for the installed torchvision; otherwise loading judges it.
    """
    spec = parse_model(word)
    if spec.source == TORCHVISION and list_is_current():
        check_model_name(spec.name, [info.name for info in bundled_models()])
    return spec


def check_weights(spec: ModelSpec, word: str) -> None:
    """Refuse, without torch, a weights word that cannot be right for the model ``spec``.

    Raises:
        RequestError: the word names no file, and no weights of the model. A name is judged here
            only when the bundled list is for the installed torchvision.
    """
    if word == "random":
        return
    if spec.source != TORCHVISION:
        if word.lower() == "default" and spec.source in (TIMM, TRANSFORMERS):
            return
        if is_weights_file(word):
            check_weights_file(word)
        elif spec.source in (TIMM, TRANSFORMERS):
            raise RequestError(
                f"There are no weights called {word!r}.", "Give random, default or a file."
            )
        elif spec.source != PLUGIN:
            raise no_weights_by_name(word)
        return
    known = (
        next((m.weights for m in bundled_models() if m.name == spec.name), ())
        if list_is_current()
        else ()
    )
    if word.lower() == "default" or word in known:
        return
    if is_weights_file(word):
        check_weights_file(word)
    elif known:
        raise no_such_weights(spec.name, word, known)


def check_attn(spec: ModelSpec, kind: str | None) -> None:
    """Refuse a kind of attention for a model that has no choice of it.

    Raises:
        RequestError: the model is not one of transformers.
    """
    if kind is not None and spec.source != TRANSFORMERS:
        raise RequestError(
            f"--attn is for models of transformers (hf:FOLDER), and {spec.word!r} is none.",
            "Leave it out.",
        )


def no_weights_by_name(word: str) -> RequestError:
    """Return the error about a named set of weights for a model from a file."""
    return RequestError(
        f"A model from a file has no weights called {word!r}.", "Give --weights FILE."
    )


def no_such_weights(name: str, word: str, known: Iterable[str]) -> RequestError:
    """Return the error about ``word``, which is none of the weights of the model ``name``."""
    choices = (
        f"{name} has {', '.join(known)}; random, default and a file do for any torchvision model."
    )
    near = did_you_mean(word, known)
    return RequestError(f"There are no weights called {word!r}.", f"{near} {choices}".strip())


def check_model_name(
    name: str, known: list[str], listing: str = "hookscope models lists all names."
) -> None:
    """Raise ModelError, with near names, unless ``name`` is one of ``known``."""
    if name not in known:
        reject_path(name)
        raise ModelError(
            f"There is no model called {name!r}.", f"{did_you_mean(name, known)} {listing}".strip()
        )
