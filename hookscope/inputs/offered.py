"""Batches that Python code offers: a function, a generator, a Dataset or a DataLoader."""

from __future__ import annotations

import inspect
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from hookscope.errors import InputError
from hookscope.inputs import photos
from hookscope.inputs.arrays import tensor_of
from hookscope.inputs.places import takes_one
from hookscope.inputs.reading import Asked
from hookscope.inputs.words import InputWord
from hookscope.sources.functions import load_home
from hookscope.sources.userfile import guarded
from hookscope.spec import parse_function
from hookscope.suggest import did_you_mean
from hookscope.tensors import walk

log = logging.getLogger("hookscope")

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
    function = parse_function(word.rest)
    with _seeded(asked.seed):
        home = load_home(function)
        if function.name not in vars(home):
            near = did_you_mean(function.name, [n for n in vars(home) if not n.startswith("_")])
            raise InputError(f"{function.home} has no {function.name!r}.", near or _WANTED)
        finder = _Finder(asked, word.rest, partial(guarded, function.home))
        value = finder.batch(vars(home)[function.name], _CALLS)
    if not any(True for _ in walk(value)):
        kind = type(value).__name__
        raise InputError(f"{word.rest} gives no tensor but {kind}.", _WANTED)
    return value, None


class _Finder:
    """Finds the first batch in whatever a name stands for; ``run`` calls code of the user's."""

    def __init__(self, asked: Asked, word: str, run: Callable[[Callable[[], Any]], Any]) -> None:
        self.asked = asked
        self.word = word
        self.run = run

    def batch(self, found: Any, calls: int) -> Any:
        if isinstance(found, DataLoader):
            told = f"the first batch of {_length(found)}"
            return self._sample(self._first(lambda: iter(found)), told)
        if isinstance(found, IterableDataset):
            item = self._first(lambda: iter(found))
            return self._sample(self._collated(item), "the first sample")
        if _is_dataset(found):
            if not self.run(lambda: len(found)):
                raise self._empty()
            item = self.run(lambda: found[0])
            return self._sample(self._collated(item), f"the first sample of {_length(found)}")
        if isinstance(found, Iterator):
            return self._plain(self._first(lambda: found))
        if callable(found) and not isinstance(found, torch.nn.Module) and calls:
            self._demand_no_arguments(found)
            return self.batch(self.run(found), calls - 1)
        return self._plain(found)

    def _first(self, start: Callable[[], Iterator[Any]]) -> Any:
        nothing = object()
        item = self.run(lambda: next(start(), nothing))
        if item is nothing:
            raise self._empty()
        return item

    def _sample(self, batch: Any, told: str) -> Any:
        """A call value of what a Dataset or DataLoader gives; lists hold what tuples held."""
        log.info("input: %s gives %s", self.word, told)
        if isinstance(batch, list | tuple) and not hasattr(batch, "_fields"):
            if len(batch) == 2 and takes_one(self.asked.loaded):
                log.info("input: the second of each pair is taken for a label and left out")
                return self._plain(batch[0])
            return tuple(self._plain(item) for item in batch)
        return self._plain(batch)

    def _collated(self, item: Any) -> Any:
        """A batch of one."""
        return self.run(lambda: default_collate([self._pictured(item)]))

    def _pictured(self, item: Any) -> Any:
        """The sample with its images made tensors, as those in files are."""
        if isinstance(item, Image):
            channels, recipe = photos.recipe_for(self.asked)
            log.info("input: images of %s: %s", self.word, recipe.text)
            return recipe.run(item.convert("RGB" if channels == 3 else "L"))
        if isinstance(item, tuple | list) and not hasattr(item, "_fields"):
            return type(item)(self._pictured(part) for part in item)
        if isinstance(item, Mapping):
            return {key: self._pictured(part) for key, part in item.items()}
        return item

    def _plain(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return tensor_of(value, self.word)
        return dict(value) if isinstance(value, Mapping) else value

    def _demand_no_arguments(self, function: Callable[..., Any]) -> None:
        try:
            inspect.signature(function).bind()
        except TypeError as exc:
            raise InputError(
                f"{self.word} is called without arguments, and {exc}.",
                "Give its parameters defaults, or write a function that fills them.",
            ) from exc
        except ValueError:  # written in C, and silent about it
            pass

    def _empty(self) -> InputError:
        return InputError(f"{self.word} gives no batch: it is empty.", _WANTED)


def _is_dataset(found: Any) -> bool:
    sized = hasattr(found, "__getitem__") and hasattr(found, "__len__")
    plain = isinstance(found, Tensor | np.ndarray | list | tuple | Mapping | str)
    return sized and not plain and not isinstance(found, type | torch.nn.Module)


def _length(found: Dataset[Any] | DataLoader[Any] | Sized) -> str:
    try:
        return str(len(found))  # type: ignore[arg-type]
    except TypeError:  # of a stream
        return "a stream"


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed what code that shuffles draws from, and put the states back."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
