"""Batches from Python code: a function, a generator, a Dataset or a DataLoader."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sized
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from hookscope.errors import InputError
from hookscope.files.signatures import signature_of
from hookscope.files.suggestions import did_you_mean
from hookscope.inputs import image_input
from hookscope.inputs.call_arguments import takes_one_argument
from hookscope.inputs.input_reader import ReadContext
from hookscope.inputs.tensor_input import tensor_from_array
from hookscope.sources.loaded import Recipe
from hookscope.sources.user_code import load_user_module, run_user_code
from hookscope.specs.input_spec import InputSpec
from hookscope.specs.model_spec import parse_function
from hookscope.tensors.nested import walk
from hookscope.tensors.seeding import seeded_throughout

log = logging.getLogger("hookscope")

# Calls a function, and names the user's file and line in the error if it raises.
Run = Callable[[Callable[[], Any]], Any]

_OFFER = "Name a function or generator that gives batches, a Dataset, a DataLoader, or a tensor."
_MAX_CALLS = 3  # of functions that return functions


def read_python(context: ReadContext, spec: InputSpec) -> tuple[Any, None]:
    """Return the first batch that an object in a Python file or module gives, as a call value."""
    with seeded_throughout(context.seed):
        source, run = find_object(spec.rest)
        value = _FirstBatch(context, spec.rest, run).of(source)
    if not any(True for _ in walk(value)):
        kind = type(value).__name__
        raise InputError(f"{spec.rest} gives {kind}, which contains no tensor.", _OFFER)
    return value, None


def find_object(spec: str) -> tuple[Any, Run]:
    """Return the object of a function spec, or what it returns, and what calls code of its file."""
    function = parse_function(spec)
    module = load_user_module(function)
    if function.name not in vars(module):
        near = did_you_mean(function.name, [n for n in vars(module) if not n.startswith("_")])
        raise InputError(f"{function.home} has no {function.name!r}.", near or _OFFER)
    run = partial(run_user_code, function.home)
    value = vars(module)[function.name]
    for _ in range(_MAX_CALLS):
        if is_dataset(value) or isinstance(value, Iterator | torch.nn.Module):
            break
        if callable(value):
            _check_no_arguments(spec, value)
            value = run(value)
    return value, run


def _check_no_arguments(spec: str, function: Callable[..., Any]) -> None:
    try:
        signature_of(function).bind()
    except TypeError as exc:
        raise InputError(
            f"{spec} is called without arguments, but {exc}.",
            "Give its parameters defaults, or name a function without required parameters.",
        ) from exc
    except ValueError:  # written in C, without a signature
        pass


class _FirstBatch:
    """Takes the first batch from a Dataset, a DataLoader, an iterator or a value."""

    def __init__(self, context: ReadContext, spec: str, run: Run) -> None:
        self.context = context
        self.spec = spec
        self.run = run

    def of(self, source: Any) -> Any:
        """Return the first batch of ``source`` as a call value."""
        if isinstance(source, DataLoader):
            description = f"the first batch of {_length(source)}"
            return self._call_value(self._first(lambda: iter(source)), description)
        if isinstance(source, IterableDataset):
            item = self._first(lambda: iter(source))
            return self._call_value(self._collated(item), "the first sample")
        if is_dataset(source):
            if not self.run(lambda: len(source)):
                raise self._empty()
            item = self.run(lambda: source[0])
            description = f"the first sample of {_length(source)}"
            return self._call_value(self._collated(item), description)
        if isinstance(source, Iterator):
            return plain_argument(self._first(lambda: source), self.spec)
        return plain_argument(source, self.spec)

    def _first(self, start: Callable[[], Iterator[Any]]) -> Any:
        missing = object()
        item = self.run(lambda: next(start(), missing))
        if item is missing:
            raise self._empty()
        return item

    def _call_value(self, batch: Any, description: str) -> Any:
        """The call value of a batch that a Dataset or DataLoader gave."""
        log.info("input: %s gives %s", self.spec, description)
        if has_label(batch, takes_one_argument(self.context.loaded)):
            note_labels_ignored()
            return plain_argument(batch[0], self.spec)
        return batch_arguments(batch, self.spec)

    def _collated(self, item: Any) -> Any:
        """A batch of one."""
        return self.run(lambda: default_collate([convert_images(item, self._recipe)]))

    def _recipe(self) -> tuple[int, Recipe]:
        channels, recipe = image_input.resolve_recipe(self.context)
        log.info("input: images of %s: %s", self.spec, recipe.text)
        return channels, recipe

    def _empty(self) -> InputError:
        return InputError(f"{self.spec} is empty and gives no batch.", _OFFER)


def _length(source: Dataset[Any] | DataLoader[Any] | Sized) -> str:
    try:
        return str(len(source))  # type: ignore[arg-type]
    except TypeError:  # of a stream
        return "a stream"


def is_dataset(value: Any) -> bool:
    """Whether a value is a DataLoader, or a Dataset by its class or by its methods."""
    if isinstance(value, DataLoader | IterableDataset):
        return True
    sized = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    plain = isinstance(value, Tensor | np.ndarray | list | tuple | Mapping | str)
    return sized and not plain and not isinstance(value, type | torch.nn.Module)


def convert_images(item: Any, recipe: Callable[[], tuple[int, Recipe]]) -> Any:
    """Return an item with each PIL image as a tensor."""
    if isinstance(item, Image):
        channels, image_recipe = recipe()
        return image_recipe.run(item.convert("RGB" if channels == 3 else "L"))
    if isinstance(item, tuple | list) and not hasattr(item, "_fields"):
        return type(item)(convert_images(part, recipe) for part in item)
    if isinstance(item, Mapping):
        return {key: convert_images(part, recipe) for key, part in item.items()}
    return item


def has_label(batch: Any, single: bool) -> bool:
    """Whether a batch is a pair of an input and a label: the model needs a ``single`` argument."""
    return (
        single
        and isinstance(batch, list | tuple)
        and not hasattr(batch, "_fields")
        and (len(batch) == 2)
    )


def note_labels_ignored() -> None:
    """Log that labels are ignored."""
    log.info("input: the second element of each pair is ignored as a label")


def batch_arguments(batch: Any, spec: str) -> Any:
    """Return a batch as a call value; DataLoader makes lists of tuples."""
    if isinstance(batch, list | tuple) and not hasattr(batch, "_fields"):
        return tuple(plain_argument(item, spec) for item in batch)
    return plain_argument(batch, spec)


def plain_argument(value: Any, spec: str) -> Any:
    """Return a value as an argument of a model: an array as a tensor, a mapping as a dict."""
    if isinstance(value, np.ndarray):
        return tensor_from_array(value, spec)
    return dict(value) if isinstance(value, Mapping) else value
