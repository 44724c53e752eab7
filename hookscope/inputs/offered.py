"""Batches that Python code offers: a function, a generator, a Dataset or a DataLoader."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Sized
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from hookscope.errors import InputError
from hookscope.inputs import photos
from hookscope.inputs.items import (
    arguments_of,
    is_dataset,
    is_labelled,
    pictured,
    plain,
    tell_of_labels,
)
from hookscope.inputs.places import takes_one
from hookscope.inputs.reading import Asked
from hookscope.sources.functions import load_home
from hookscope.sources.loaded import Recipe
from hookscope.sources.userfile import guarded
from hookscope.specs.input import InputWord
from hookscope.specs.model import parse_function
from hookscope.specs.suggest import did_you_mean
from hookscope.tensors.nested import walk
from hookscope.tensors.seeding import seeded_throughout

log = logging.getLogger("hookscope")

Run = Callable[[Callable[[], Any]], Any]

_WANTED = "Name a function or generator that gives batches, a Dataset, a DataLoader, or a tensor."
_CALLS = 3  # a function that returns a function that returns a loader: no deeper


def open_one(asked: Asked, word: InputWord) -> tuple[Any, None]:
    """Return the first batch that a name in a Python file or module gives, as a call value.

    Of a Dataset that is its first sample, made a batch of one. Of pairs that a Dataset or a
    DataLoader gives, the second is taken for a label and left out if the model needs one argument.

    Raises:
        ModelError: the code raised; names file and line.
        InputError: there is no such name, or it gives nothing that holds a tensor.
    """
    with seeded_throughout(asked.seed):
        found, run = find(word.rest)
        value = _Finder(asked, word.rest, run).batch(found)
    if not any(True for _ in walk(value)):
        kind = type(value).__name__
        raise InputError(f"{word.rest} gives no tensor but {kind}.", _WANTED)
    return value, None


def find(word: str) -> tuple[Any, Run]:
    """Return what a name in a file or module stands for, and what runs code from there.

    Functions are called, for they are there to return it.

    Raises:
        ModelError: the code raised; names file and line.
        InputError: there is no such name, or a function of that name needs arguments.
    """
    function = parse_function(word)
    home = load_home(function)
    if function.name not in vars(home):
        near = did_you_mean(function.name, [n for n in vars(home) if not n.startswith("_")])
        raise InputError(f"{function.home} has no {function.name!r}.", near or _WANTED)
    run = partial(guarded, function.home)
    found = vars(home)[function.name]
    for _ in range(_CALLS):
        if is_dataset(found) or isinstance(found, Iterator | torch.nn.Module):
            break
        if callable(found):
            _demand_no_arguments(word, found)
            found = run(found)
    return found, run


def _demand_no_arguments(word: str, function: Callable[..., Any]) -> None:
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

    def __init__(self, asked: Asked, word: str, run: Run) -> None:
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
            return plain(self._first(lambda: found), self.word)
        return plain(found, self.word)

    def _first(self, start: Callable[[], Iterator[Any]]) -> Any:
        nothing = object()
        item = self.run(lambda: next(start(), nothing))
        if item is nothing:
            raise self._empty()
        return item

    def _sample(self, batch: Any, told: str) -> Any:
        """A call value of what a Dataset or DataLoader gives; lists hold what tuples held."""
        log.info("input: %s gives %s", self.word, told)
        if is_labelled(batch, takes_one(self.asked.loaded)):
            tell_of_labels()
            return plain(batch[0], self.word)
        return arguments_of(batch, self.word)

    def _collated(self, item: Any) -> Any:
        """A batch of one."""
        return self.run(lambda: default_collate([pictured(item, self._recipe)]))

    def _recipe(self) -> tuple[int, Recipe]:
        channels, recipe = photos.recipe_for(self.asked)
        log.info("input: images of %s: %s", self.word, recipe.text)
        return channels, recipe

    def _empty(self) -> InputError:
        return InputError(f"{self.word} gives no batch: it is empty.", _WANTED)


def _length(found: Dataset[Any] | DataLoader[Any] | Sized) -> str:
    try:
        return str(len(found))  # type: ignore[arg-type]
    except TypeError:  # of a stream
        return "a stream"
