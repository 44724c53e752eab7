"""Batches that Python code offers: a function, a generator, a Dataset or a DataLoader."""

from __future__ import annotations

import inspect
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
from hookscope.inputs import image_input
from hookscope.inputs.call_arguments import takes_one_argument
from hookscope.inputs.input_reader import ReadContext
from hookscope.inputs.tensor_input import tensor_from_array
from hookscope.sources.loaded import Recipe
from hookscope.sources.user_code import load_user_module, run_user_code
from hookscope.specs.input_spec import InputSpec
from hookscope.specs.model_spec import parse_function
from hookscope.specs.suggestions import did_you_mean
from hookscope.tensors.nested import walk
from hookscope.tensors.seeding import seeded_throughout

log = logging.getLogger("hookscope")

Run = Callable[[Callable[[], Any]], Any]

_WANTED = "Name a function or generator that gives batches, a Dataset, a DataLoader, or a tensor."

_CALLS = 3  # a function that returns a function that returns a loader: no deeper


def read_python(asked: ReadContext, word: InputSpec) -> tuple[Any, None]:
    """Return the first batch that a name in a Python file or module gives, as a call value.

    Of a Dataset that is its first sample, made a batch of one. Of pairs that a Dataset or a
    DataLoader gives, the second is taken for a label and left out if the model needs one argument.

    Raises:
        ModelError: the code raised; names file and line.
        InputError: there is no such name, or it gives nothing that holds a tensor.
    """
    with seeded_throughout(asked.seed):
        found, run = find_object(word.rest)
        value = _Finder(asked, word.rest, run).batch(found)
    if not any(True for _ in walk(value)):
        kind = type(value).__name__
        raise InputError(f"{word.rest} gives no tensor but {kind}.", _WANTED)
    return value, None


def find_object(word: str) -> tuple[Any, Run]:
    """Return what a name in a file or module stands for, and what runs code from there.

    Functions are called, for they are there to return it.

    Raises:
        ModelError: the code raised; names file and line.
        InputError: there is no such name, or a function of that name needs arguments.
    """
    function = parse_function(word)
    home = load_user_module(function)
    if function.name not in vars(home):
        near = did_you_mean(function.name, [n for n in vars(home) if not n.startswith("_")])
        raise InputError(f"{function.home} has no {function.name!r}.", near or _WANTED)
    run = partial(run_user_code, function.home)
    found = vars(home)[function.name]
    for _ in range(_CALLS):
        if is_dataset(found) or isinstance(found, Iterator | torch.nn.Module):
            break
        if callable(found):
            _check_no_arguments(word, found)
            found = run(found)
    return found, run


def _check_no_arguments(word: str, function: Callable[..., Any]) -> None:
    try:
        inspect.signature(function).bind()
    except TypeError as exc:
        raise InputError(
            f"{word} is called without arguments, and {exc}.",
            "Give its parameters defaults, or write a function that fills them.",
        ) from exc
    except ValueError:  # written in C, and silent about it
        pass


class _Finder:
    """Finds the first batch in whatever a name stands for; ``run`` calls code of the user's."""

    def __init__(self, asked: ReadContext, word: str, run: Run) -> None:
        self.asked = asked
        self.word = word
        self.run = run

    def batch(self, found: Any) -> Any:
        if isinstance(found, DataLoader):
            told = f"the first batch of {_length(found)}"
            return self._sample(self._first(lambda: iter(found)), told)
        if isinstance(found, IterableDataset):
            item = self._first(lambda: iter(found))
            return self._sample(self._collated(item), "the first sample")
        if is_dataset(found):
            if not self.run(lambda: len(found)):
                raise self._empty()
            item = self.run(lambda: found[0])
            return self._sample(self._collated(item), f"the first sample of {_length(found)}")
        if isinstance(found, Iterator):
            return plain_argument(self._first(lambda: found), self.word)
        return plain_argument(found, self.word)

    def _first(self, start: Callable[[], Iterator[Any]]) -> Any:
        nothing = object()
        item = self.run(lambda: next(start(), nothing))
        if item is nothing:
            raise self._empty()
        return item

    def _sample(self, batch: Any, told: str) -> Any:
        """A call value of what a Dataset or DataLoader gives; lists hold what tuples held."""
        log.info("input: %s gives %s", self.word, told)
        if has_label(batch, takes_one_argument(self.asked.loaded)):
            note_labels_ignored()
            return plain_argument(batch[0], self.word)
        return batch_arguments(batch, self.word)

    def _collated(self, item: Any) -> Any:
        """A batch of one."""
        return self.run(lambda: default_collate([convert_images(item, self._recipe)]))

    def _recipe(self) -> tuple[int, Recipe]:
        channels, recipe = image_input.resolve_recipe(self.asked)
        log.info("input: images of %s: %s", self.word, recipe.text)
        return channels, recipe

    def _empty(self) -> InputError:
        return InputError(f"{self.word} gives no batch: it is empty.", _WANTED)


def _length(found: Dataset[Any] | DataLoader[Any] | Sized) -> str:
    try:
        return str(len(found))  # type: ignore[arg-type]
    except TypeError:  # of a stream
        return "a stream"


_items_log = logging.getLogger("hookscope")


def is_dataset(found: Any) -> bool:
    """Whether something is a Dataset, be it in all but name, or a DataLoader."""
    if isinstance(found, DataLoader | IterableDataset):
        return True
    sized = hasattr(found, "__getitem__") and hasattr(found, "__len__")
    plain = isinstance(found, Tensor | np.ndarray | list | tuple | Mapping | str)
    return sized and not plain and not isinstance(found, type | torch.nn.Module)


def convert_images(item: Any, recipe: Callable[[], tuple[int, Recipe]]) -> Any:
    """Return an item with its images made tensors, as those in files are.

    Args:
        item: what a Dataset gives.
        recipe: gives the channels and the recipe of images; called only where there is one.
    """
    if isinstance(item, Image):
        channels, found = recipe()
        return found.run(item.convert("RGB" if channels == 3 else "L"))
    if isinstance(item, tuple | list) and not hasattr(item, "_fields"):
        return type(item)(convert_images(part, recipe) for part in item)
    if isinstance(item, Mapping):
        return {key: convert_images(part, recipe) for key, part in item.items()}
    return item


def has_label(batch: Any, one: bool) -> bool:
    """Whether something is a pair whose second half is a label, for the model needs ``one``."""
    return (
        one
        and isinstance(batch, list | tuple)
        and not hasattr(batch, "_fields")
        and (len(batch) == 2)
    )


def note_labels_ignored() -> None:
    """Say that labels are left out."""
    _items_log.info("input: the second of each pair is taken for a label and left out")


def batch_arguments(batch: Any, word: str) -> Any:
    """Return the call value that a batch is; lists hold what tuples held."""
    if isinstance(batch, list | tuple) and not hasattr(batch, "_fields"):
        return tuple(plain_argument(item, word) for item in batch)
    return plain_argument(batch, word)


def plain_argument(value: Any, word: str) -> Any:
    """Return what a model takes for an argument."""
    if isinstance(value, np.ndarray):
        return tensor_from_array(value, word)
    return dict(value) if isinstance(value, Mapping) else value
