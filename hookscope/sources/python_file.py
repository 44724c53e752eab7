"""Models from a user's Python, a file or a module: a class, a factory, an instance, a function."""

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
from hookscope.sources import arguments, weights
from hookscope.sources.layouts import stack_waveforms
from hookscope.sources.loaded import (
    LoadedModel,
    Recipe,
    SoundRecipe,
    TextRecipe,
    WeightsInfo,
    WeightsRequest,
)
from hookscope.sources.user_code import import_user_module, run_file, run_user_code
from hookscope.sources.wrappers import copy_model
from hookscope.specs.catalog import no_weights_by_name
from hookscope.specs.model_spec import FILE, ModelSpec, end_sentence, is_weights_file
from hookscope.specs.suggestions import did_you_mean
from hookscope.tensors.nested import walk
from hookscope.tensors.seeding import seeded_throughout

if TYPE_CHECKING:
    from PIL.Image import Image

log = logging.getLogger("hookscope")

_CLASS, _INSTANCE, _FACTORY, _AUTOGRAD = "class", "instance", "function", "autograd function"

# Functions of a file that build no model.
_OFFERS = ("example_input", "preprocess", "tokenize", "main")


def load(
    spec: ModelSpec, *, weights: WeightsRequest, model_args: dict[str, Any], seed: int, meta: bool
) -> LoadedModel:
    """Build the model that ``spec`` names in a file or a module to import.

    See ``hookscope.sources.model_loader.load``. ``meta`` is not heeded: a user's code may read the
    values of its parameters as it builds.
    """
    with seeded_throughout(seed):
        file = run_file(spec.path) if spec.source == FILE else import_user_module(spec.path)
        name, found = _find(file, spec)
        # Once more, so that what the file does besides does not change the weights.
        with seeded_throughout(seed):
            module = _build(spec, name, found, model_args)
    offered = vars(file)
    example, preprocess = offered.get("example_input"), offered.get("preprocess")
    tokenize, rate = offered.get("tokenize"), offered.get("sample_rate")
    return LoadedModel(
        module=module.eval(),
        word=spec.word,
        name=name,
        source=spec.source,
        categories=tuple(map(str, offered.get("categories") or ())),
        weights=_weigh(module, spec, weights, seed),
        own_recipe=_recipe(spec, preprocess) if callable(preprocess) else None,
        own_text=_text_recipe(spec, tokenize) if callable(tokenize) else None,
        own_sound=_sound_recipe(spec, rate) if isinstance(rate, int) and rate > 0 else None,
        own_example=partial(run_user_code, spec.path, example) if callable(example) else None,
    )


def _find(file: ModuleType, spec: ModelSpec) -> tuple[str, Any]:
    """The name and object that ``spec`` means, or the only model of the file."""
    if spec.name and spec.name in vars(file):
        return spec.name, vars(file)[spec.name]
    public = {name: value for name, value in vars(file).items() if not name.startswith("_")}
    offered = {name: _kind(value, file) for name, value in public.items() if name not in _OFFERS}
    models = [name for name, kind in offered.items() if kind in (_CLASS, _INSTANCE)]
    listing = _listing(spec.path, models, offered)
    if spec.name:
        near = did_you_mean(spec.name, [name for name, kind in offered.items() if kind])
        raise ModelError(f"{spec.path!r} defines no {spec.name!r}.", f"{near} {listing}".strip())
    if len(models) == 1:
        return models[0], public[models[0]]
    count = f"{len(models)} models" if models else "no nn.Module"
    raise ModelError(f"{spec.path!r} holds {count}: which one to take is not clear.", listing)


def _kind(value: Any, file: ModuleType) -> str:
    """What ``value`` is for somebody who looks for a model; empty if nothing, or from elsewhere."""
    if isinstance(value, nn.Module):
        return _INSTANCE
    home = f"{getattr(value, '__module__', '')}."
    if not home.startswith(f"{file.__name__}."):  # a package may offer what its modules define
        return ""
    if isinstance(value, type) and issubclass(value, nn.Module):
        return _CLASS
    return (
        _FACTORY if inspect.isfunction(value) else _AUTOGRAD if is_autograd_function(value) else ""
    )


def _listing(path: str, models: list[str], offered: dict[str, str]) -> str:
    names = models + [name for name, kind in offered.items() if kind in (_FACTORY, _AUTOGRAD)]
    words = [f"{path}:{name} ({offered[name]})" for name in names]
    return f"It offers {', '.join(words)}." if words else "It defines no class or function."


def _build(spec: ModelSpec, name: str, found: Any, model_args: dict[str, Any]) -> nn.Module:
    if isinstance(found, nn.Module):
        if model_args:
            raise ModelError(
                f"{name} in {spec.path!r} is built already and takes no arguments.",
                "Name its class or a function that builds it, or leave out --model-arg.",
            )
        if spec.source == FILE:  # which is run anew each time
            return found
        # An imported module stays, for other code and for the next word: diff A and B, say.
        repair = "Name its class or a function that builds it."
        return copy_model(found, "from the module that holds it", repair)
    if is_autograd_function(found):
        return function_module(found)
    if not callable(found):
        raise ModelError(
            f"{name} in {spec.path!r} is of type {type(found).__name__}, not a model.",
            "Name an nn.Module class, a function that returns one, or an instance.",
        )
    given = arguments.convert_arguments(found, model_args)
    _check_arguments(name, found, given)
    built = run_user_code(spec.path, partial(found, **given))
    if not isinstance(built, nn.Module):
        kind = type(built).__name__
        article = "an" if kind[0].lower() in "aeiou" else "a"
        raise ModelError(
            f"{name} in {spec.path!r} gave {article} {kind}, not an nn.Module.",
            "Name an nn.Module class, a function that returns one, or an instance.",
        )
    return built


def _check_arguments(name: str, target: Callable[..., Any], given: dict[str, Any]) -> None:
    """Refuse missing and unknown arguments before the call, so that the signature can be told."""
    try:
        signature = inspect.signature(target)
    except ValueError:  # a callable written in C may have none
        return
    try:
        signature.bind(**given)
    except TypeError as exc:
        raise ModelError(
            f"{name} cannot be built with {arguments.format_arguments(given)}: {end_sentence(str(exc))}",
            f"It is {name}{signature}; give --model-arg KEY=VALUE for each argument.",
        ) from None


def _weigh(module: nn.Module, spec: ModelSpec, wanted: WeightsRequest, seed: int) -> WeightsInfo:
    if wanted.word == "random":
        log.info("weights: as built by %s from seed %d", spec.path, seed)
        return WeightsInfo("as built")
    if is_weights_file(wanted.word):
        return weights.load_file_into(module, wanted)
    raise no_weights_by_name(wanted.word)


def _recipe(spec: ModelSpec, preprocess: Callable[[Image], Any]) -> Recipe:
    def run(image: Image) -> Tensor:
        made = run_user_code(spec.path, partial(preprocess, image))
        if isinstance(made, Tensor) and made.ndim == 3:
            return made
        what = f"shape {tuple(made.shape)}" if isinstance(made, Tensor) else type(made).__name__
        raise ModelError(
            f"preprocess() in {spec.path!r} gave {what}.",
            "It is to return one tensor of shape C, H, W.",
        )

    return Recipe(run, f"preprocess() of {spec.path}", None)


def _text_recipe(spec: ModelSpec, tokenize: Callable[[list[str]], Any]) -> TextRecipe:
    def run(texts: Sequence[str]) -> Any:
        made = run_user_code(spec.path, partial(tokenize, list(texts)))
        made = dict(made) if isinstance(made, Mapping) else made
        if any(True for _ in walk(made)):
            return made
        raise ModelError(
            f"tokenize() in {spec.path!r} gave no tensor but {type(made).__name__}.",
            "It is to return what the model is called with: a tensor, or a dict of arguments.",
        )

    return TextRecipe(run, f"tokenize() of {spec.path}")


def _sound_recipe(spec: ModelSpec, rate: int) -> SoundRecipe:
    return SoundRecipe(stack_waveforms, rate, f"sample_rate of {spec.path}")


def function_module(function: type[torch.autograd.Function]) -> nn.Module:
    """Return a module of the function's name that calls its ``apply``; it has no parameters.

    Example:
        >>> class Twice(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x): return 2 * x
        >>> applied(Twice)(torch.ones(2)), applied(Twice)
        (tensor([2., 2.]), Twice())
    """

    def forward(self: nn.Module, *args: Any) -> Any:
        return function.apply(*args)

    made: nn.Module = type(function.__name__, (nn.Module,), {"forward": forward})()
    return made


def is_autograd_function(value: object) -> TypeGuard[type[torch.autograd.Function]]:
    """Whether ``value`` is a class derived from ``torch.autograd.Function``."""
    return isinstance(value, type) and issubclass(value, torch.autograd.Function)
