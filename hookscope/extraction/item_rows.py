"""Rows from a Dataset or a DataLoader of the user's own: its items, in their order."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    default_collate,
)

from hookscope.errors import HookscopeError, InputError, cause
from hookscope.extraction.row_batches import Row
from hookscope.inputs.call_arguments import takes_one_argument
from hookscope.inputs.python_input import (
    Run,
    batch_arguments,
    convert_images,
    find_object,
    has_label,
    is_dataset,
    plain_argument,
)
from hookscope.sources.loaded import LoadedModel, Recipe
from hookscope.specs.input_spec import names_function
from hookscope.tensors.seeding import seeded_throughout

_ORDER = "A run that is resumed, or done by several processes, needs the same item in each row"


@dataclass(frozen=True)
class DatasetItems:
    """What an input that is no file gives.

    Attributes:
        dataset: with items and a length.
        word: what to call it.
        run: runs code of the user's.
        collate: puts items together as the user's DataLoader does; None for torch's own way.
        batch: of the user's DataLoader.
        numbers: which items become rows.
    """

    dataset: Any
    word: str
    run: Run
    collate: Callable[[list[Any]], Any] | None
    batch: int | None
    numbers: range


def find_items(given: Any, every: int, seed: int) -> DatasetItems | None:
    """Return the items that an input gives; None where it is files.

    Raises:
        ModelError: the user's code raised; names file and line.
        InputError: what is there has no order, no length, no items, or stands beside other inputs.
    """
    if given is None:
        return None
    words = [given] if isinstance(given, str | os.PathLike) else given
    if not isinstance(words, list | tuple):
        return _items(given, type(given).__name__, lambda call: call(), every)
    texts = [os.fspath(word) for word in words if isinstance(word, str | os.PathLike)]
    offered = [text for text in texts if not os.path.lexists(text) and names_function(text)]
    if not offered and len(texts) == len(words):
        return None
    if len(words) > 1 or not offered:
        raise InputError(
            "A Dataset is the only input of a run, or files are.",
            "torch.utils.data.ConcatDataset makes one Dataset of several.",
        )
    with seeded_throughout(seed):
        found, run = find_object(offered[0])
    return _items(found, offered[0], run, every)


def _items(found: Any, word: str, run: Run, every: int) -> DatasetItems:
    if not is_dataset(found):
        kind = type(found).__name__
        what = word if word == kind else f"{word}, a {kind},"
        raise InputError(
            f"{what} is neither files nor a Dataset nor a DataLoader.",
            "torch.utils.data.TensorDataset(tensor) makes a Dataset of a tensor.",
        )
    collate, batch = None, None
    if isinstance(found, DataLoader):
        loader, found = found, found.dataset
        _demand_order(loader, word)
        batch = loader.batch_size
        collate = None if loader.collate_fn is default_collate else loader.collate_fn
    if isinstance(found, IterableDataset) or not hasattr(found, "__len__"):
        raise InputError(
            f"{word} is a stream: its items have no numbers and no count. {_ORDER}.",
            "Name a Dataset with __getitem__ and __len__.",
        )
    numbers = range(0, run(lambda: len(found)), every)
    if not numbers:
        raise InputError(f"{word} is empty.", "Name a Dataset that holds something.")
    return DatasetItems(found, word, run, collate, batch, numbers)


def _demand_order(loader: DataLoader[Any], word: str) -> None:
    if isinstance(loader.dataset, IterableDataset):
        return
    if type(loader.batch_sampler) is not BatchSampler:
        raise InputError(
            f"{word} puts batches together in a way of its own. {_ORDER}.",
            "Give the DataLoader a batch_size, and no batch_sampler; or name its Dataset.",
        )
    if not isinstance(loader.sampler, SequentialSampler):
        raise InputError(
            f"{word} draws its items by a {type(loader.sampler).__name__}. {_ORDER}.",
            "Make the DataLoader with shuffle=False and no sampler, or name its Dataset;"
            " torch.utils.data.Subset takes items out of one.",
        )


class ItemRows(Dataset[Row]):
    """Items, one a row, each drawn with random numbers of its own.

    Attributes:
        labelled: whether a label has been left out.

    Args:
        items: where they come from.
        loaded: the model that they are for.
        recipe: gives the channels and the recipe of images.
        seed: of random numbers.
    """

    def __init__(
        self,
        items: DatasetItems,
        loaded: LoadedModel,
        recipe: Callable[[], tuple[int, Recipe]],
        seed: int,
    ) -> None:
        self._items = items
        self._one = takes_one_argument(loaded)
        self._recipe = recipe
        self._seed = seed
        self.labelled = False

    def __len__(self) -> int:
        return len(self._items.numbers)

    def __getitem__(self, row: int) -> Row:
        number = self._items.numbers[row]
        try:
            # So that what is drawn does not depend on the process, or on the items before.
            with seeded_throughout((self._seed + number) % 2**63):
                item = self._items.run(lambda: self._items.dataset[number])
                if item is None:
                    raise InputError("it is None.")
                return Row(self._ready(item), {"item": number})
        except Exception as error:
            why = error.message if isinstance(error, HookscopeError) else cause(error)
            told = f"Item {number} of {self._items.word} cannot be used: {why}"
            return Row(None, {"item": number, "skipped": told})

    def _ready(self, item: Any) -> Any:
        if self._items.collate:  # which takes what the Dataset gives
            return item
        if has_label(item, self._one):
            self.labelled = True
            item = item[0]
        if type(item) in (tuple, list) and len(item) == 1:  # of a TensorDataset
            [item] = item
        return convert_images(item, self._recipe)

    def first(self, skip_bad: bool) -> Any:
        """Return the first item that can be used.

        Raises:
            InputError: there is none, or one before it is bad and ``skip_bad`` is not set.
        """
        for row in (self[i] for i in range(len(self))):
            if row.value is not None:
                return row.value
            if not skip_bad:
                raise InputError(row.told["skipped"], "--skip-bad goes on without such items.")
        raise InputError(f"None of the {len(self)} items can be used.", row.told["skipped"])

    def arrange(self, values: Sequence[Any]) -> Any:
        """Put items together to a call value.

        Raises:
            InputError: they do not fit together.
        """
        items = self._items
        try:
            batch = items.run(lambda: (items.collate or default_collate)(list(values)))
        except Exception as error:
            why = error.message if isinstance(error, HookscopeError) else cause(error)
            raise InputError(
                f"{len(values)} items of {items.word} do not go together: {why}",
                "Bring them to one shape, give --batch 1, or name a DataLoader with a collate_fn.",
            ) from error
        if items.collate and has_label(batch, self._one):
            self.labelled = True
            return plain_argument(batch[0], items.word)
        return batch_arguments(batch, items.word)
