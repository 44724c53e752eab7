"""Models from a Python file or module: a class, a factory, an instance, an autograd function."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn

from hookscope.errors import ModelError
from hookscope.files.signatures import signature_of
from hookscope.files.suggestions import did_you_mean
from hookscope.sources import arguments
from hookscope.sources.loaded import (
    LoadedModel,
    LoadRequest,
    Recipe,
    SoundRecipe,
    TextRecipe,
    WeightsInfo,
    stack_waveforms,
)
from hookscope.sources.user_code import import_user_module, run_file, run_user_code
from hookscope.sources.weights import load_over
from hookscope.sources.wrappers import copy_model
from hookscope.specs.model_spec import FILE, ModelSpec, end_sentence
from hookscope.tensors.nested import walk
from hookscope.tensors.seeding import seeded_throughout

if TYPE_CHECKING:
    from PIL.Image import Image

log = logging.getLogger("hookscope")

_CLASS, _INSTANCE, _FACTORY, _AUTOGRAD = "class", "instance", "function", "autograd function"
# Functions of a file that do not build a model.
_OTHER_FUNCTIONS = ("example_input", "preprocess", "tokenize", "main")


def load(request: LoadRequest) -> LoadedModel:
    """Build the model of a file or module; not on meta: its code may read parameters."""
    spec, seed = request.spec, request.seed
    with seeded_throughout(seed):
        file = run_file(spec.path) if spec.source == FILE else import_user_module(spec.path)
        name, value = _find(file, spec)
        # Seeded again, so that other code of the file does not change the weights.
        with seeded_throughout(seed):
            module = _build(spec, name, value, request.model_args)
    if request.weights.spec == "random":
        log.info("weights: as built by %s from seed %d", spec.path, seed)
    info = load_over(module, request.weights, WeightsInfo("as built"))
    members = vars(file)
    example, preprocess = members.get("example_input"), members.get("preprocess")
    tokenize, rate = members.get("tokenize"), members.get("sample_rate")
    sound = None
    if isinstance(rate, int) and rate > 0:
        sound = SoundRecipe(stack_waveforms, rate, f"sample_rate of {spec.path}")
    return LoadedModel(
        module=module.eval(),
        spec=spec.text,
        name=name,
        source=spec.source,
        categories=tuple(map(str, members.get("categories") or ())),
        weights=info,
        own_recipe=_recipe(spec, preprocess) if callable(preprocess) else None,
        own_text=_text_recipe(spec, tokenize) if callable(tokenize) else None,
        own_sound=sound,
        own_example=partial(run_user_code, spec.path, example) if callable(example) else None,
    )


def _find(file: ModuleType, spec: ModelSpec) -> tuple[str, Any]:
    """The name and object that ``spec`` means, or the only model of the file."""
    if spec.name and spec.name in vars(file):
        return spec.name, vars(file)[spec.name]
    public = {name: value for name, value in vars(file).items() if not name.startswith("_")}
    offered = {
        name: _kind(value, file) for name, value in public.items() if name not in _OTHER_FUNCTIONS
    }
    models = [name for name, kind in offered.items() if kind in (_CLASS, _INSTANCE)]
    listing = _listing(spec.path, models, offered)
    if spec.name:
        near = did_you_mean(spec.name, [name for name, kind in offered.items() if kind])
        raise ModelError(f"{spec.path!r} defines no {spec.name!r}.", f"{near} {listing}".strip())
    if len(models) == 1:
        return models[0], public[models[0]]
    count = f"{len(models)} models; name one" if models else "no nn.Module"
    raise ModelError(f"{spec.path!r} contains {count}.", listing)


def _kind(value: Any, file: ModuleType) -> str:
    """What kind of model ``value`` is; empty if none, or if it is defined in another module."""
    if isinstance(value, nn.Module):
        return _INSTANCE
    module = f"{getattr(value, '__module__', '')}."
    if not module.startswith(f"{file.__name__}."):  # or in a module of this package
        return ""
    if isinstance(value, type) and issubclass(value, nn.Module):
        return _CLASS
    if inspect.isfunction(value):
        return _FACTORY
    return _AUTOGRAD if is_autograd_function(value) else ""


def _listing(path: str, models: list[str], offered: dict[str, str]) -> str:
    names = models + [name for name, kind in offered.items() if kind in (_FACTORY, _AUTOGRAD)]
    specs = [f"{path}:{name} ({offered[name]})" for name in names]
    return f"Choose from {', '.join(specs)}." if specs else "It defines no class or function."


def _build(spec: ModelSpec, name: str, value: Any, model_args: Mapping[str, Any]) -> nn.Module:
    if isinstance(value, nn.Module):
        if model_args or spec.arguments.positional:
            raise ModelError(
                f"{name} in {spec.path!r} is an instance and takes no arguments.",
                "Name its class or a function that builds it, or leave out the arguments.",
            )
        if spec.source == FILE:  # the file is run anew each time
            return value
        # An imported module is shared with other code, and with the next spec, as in diff A B.
        repair = "Name its class or a function that builds it."
        return copy_model(value, "from its module", repair)
    if is_autograd_function(value):
        return function_module(value)
    if not callable(value):
        raise ModelError(
            f"{name} in {spec.path!r} is of type {type(value).__name__}, not a model.",
            "Name an nn.Module class, a function that returns one, or an instance.",
        )
    positional = spec.arguments.positional
    keywords = arguments.convert_arguments(value, model_args)
    _check_arguments(spec, name, value, keywords)
    try:
        model = run_user_code(spec.path, partial(value, *positional, **keywords))
    except ModelError as error:
        if keywords or positional:
            called = f"{name} was called with {arguments.format_arguments(keywords, positional)}."
            advice = arguments.advise_on_commas(keywords) or "Check the arguments."
            raise ModelError(error.message, f"{called} {advice} {error.hint}".strip()) from error
        raise
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        article = "an" if kind[0].lower() in "aeiou" else "a"
        raise ModelError(
            f"{name} in {spec.path!r} returned {article} {kind}, not an nn.Module.",
            "Name an nn.Module class, a function that returns one, or an instance.",
        )
    return model


def _check_arguments(
    spec: ModelSpec, name: str, target: Callable[..., Any], keywords: dict[str, Any]
) -> None:
    """Raise ModelError, with the signature, if arguments are missing or unknown."""
    try:
        signature = signature_of(target)
    except ValueError:  # a callable written in C may have none
        return
    try:
        signature.bind(*spec.arguments.positional, **keywords)
    except TypeError as exc:
        written = arguments.format_arguments(keywords, spec.arguments.positional)
        raise ModelError(
            f"{name} cannot be built with {written}: {end_sentence(str(exc))}",
            f"Its signature is {name}{signature}. Give each argument as --model-arg KEY=VALUE, or"
            f" all of them as in {spec.path}:{name}(KEY=VALUE).",
        ) from None


def _recipe(spec: ModelSpec, preprocess: Callable[[Image], Any]) -> Recipe:
    def run(image: Image) -> Tensor:
        result = run_user_code(spec.path, partial(preprocess, image))
        if isinstance(result, Tensor) and result.ndim == 3:
            return result
        is_tensor = isinstance(result, Tensor)
        what = f"shape {tuple(result.shape)}" if is_tensor else type(result).__name__
        raise ModelError(
            f"preprocess() in {spec.path!r} returned {what}.",
            "It must return one tensor of shape C, H, W.",
        )

    return Recipe(run, f"preprocess() of {spec.path}", None)


def _text_recipe(spec: ModelSpec, tokenize: Callable[[list[str]], Any]) -> TextRecipe:
    def run(texts: Sequence[str]) -> Any:
        result = run_user_code(spec.path, partial(tokenize, list(texts)))
        result = dict(result) if isinstance(result, Mapping) else result
        if any(True for _ in walk(result)):
            return result
        raise ModelError(
            f"tokenize() in {spec.path!r} returned {type(result).__name__} without a tensor.",
            "It must return the input of the model: a tensor, or a dict of arguments.",
        )

    return TextRecipe(run, f"tokenize() of {spec.path}")


def function_module(function: type[torch.autograd.Function]) -> nn.Module:
    """Return a module that calls ``apply`` of an autograd function, and has its name."""

    def forward(self: nn.Module, *args: Any) -> Any:
        return function.apply(*args)

    made: nn.Module = type(function.__name__, (nn.Module,), {"forward": forward})()
    return made


def is_autograd_function(value: object) -> TypeGuard[type[torch.autograd.Function]]:
    """Whether ``value`` is a class derived from ``torch.autograd.Function``."""
    return isinstance(value, type) and issubclass(value, torch.autograd.Function)
