"""Rows from the items of a user's Dataset or DataLoader, in order."""

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
from hookscope.extraction.row_batches import DatasetRow, TableEntry, first_usable
from hookscope.files.input_files import LABEL
from hookscope.inputs import python_input
from hookscope.inputs.call_arguments import takes_one_argument
from hookscope.inputs.text_tables import plain_label
from hookscope.sources.loaded import LoadedModel, Recipe
from hookscope.specs.input_spec import names_object
from hookscope.tensors.seeding import SeededCalls, seeded_throughout

_ORDER = "To resume a run, or to share it between processes, each row must always be the same item"


@dataclass(frozen=True)
class DatasetItems:
    """The items of a user's Dataset or DataLoader."""

    dataset: Any
    name: str
    run: python_input.Run
    collate: Callable[[list[Any]], Any] | None
    batch: int | None
    numbers: range
    in_order: bool = False  # whether only one process can read them well


def find_items(input: Any, every: int, seed: int) -> DatasetItems | None:
    """Return the items of an input; None if the input is files."""
    if input is None:
        return None
    specs = [input] if isinstance(input, str | os.PathLike) else input
    if not isinstance(specs, list | tuple):
        return _items(input, type(input).__name__, lambda call: call(), every)
    texts = [os.fspath(spec) for spec in specs if isinstance(spec, str | os.PathLike)]
    objects = [text for text in texts if names_object(text)]
    if not objects and len(texts) == len(specs):
        return None
    if len(specs) > 1 or not objects:
        raise InputError(
            "A Dataset must be the only input, and not be in a list.",
            "To combine several, use torch.utils.data.ConcatDataset.",
        )
    with seeded_throughout(seed):
        dataset, run = python_input.find_object(objects[0])
    return _items(dataset, objects[0], run, every)


def _items(dataset: Any, name: str, run: python_input.Run, every: int) -> DatasetItems:
    if not python_input.is_dataset(dataset):
        kind = type(dataset).__name__
        what = name if name == kind else f"{name}, a {kind},"
        raise InputError(
            f"{what} is not a file, a Dataset or a DataLoader.",
            "Wrap a tensor in torch.utils.data.TensorDataset(tensor).",
        )
    collate, batch = None, None
    if isinstance(dataset, DataLoader):
        loader, dataset = dataset, dataset.dataset
        _check_order(loader, name)
        batch = loader.batch_size
        collate = None if loader.collate_fn is default_collate else loader.collate_fn
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise InputError(
            f"{name} has no indices or no length. {_ORDER}.",
            "Use a Dataset with __getitem__ and __len__.",
        )
    numbers = range(0, run(lambda: len(dataset)), every)
    if not numbers:
        raise InputError(f"{name} is empty.", "Use a Dataset with at least one item.")
    return DatasetItems(dataset, name, run, collate, batch, numbers)


def _check_order(loader: DataLoader[Any], name: str) -> None:
    """Raise InputError unless the batches of ``loader`` are its items in order."""
    if isinstance(loader.dataset, IterableDataset):
        return
    if type(loader.batch_sampler) is not BatchSampler:
        raise InputError(
            f"{name} has a batch sampler of its own, or no batch_size. {_ORDER}.",
            "Make the DataLoader with a batch_size and no batch_sampler, or use its Dataset.",
        )
    if not isinstance(loader.sampler, SequentialSampler):
        raise InputError(
            f"{name} orders its items with a {type(loader.sampler).__name__}. {_ORDER}.",
            "Make the DataLoader with shuffle=False and no sampler, or use its Dataset. To select"
            " items, use torch.utils.data.Subset.",
        )


class ItemRows(Dataset[DatasetRow]):
    """Items, one per row, each read with a seed of its own."""

    def __init__(
        self,
        items: DatasetItems,
        loaded: LoadedModel,
        recipe: Callable[[], tuple[int, Recipe]],
        seed: int,
    ) -> None:
        self._items = items
        self._one_argument = takes_one_argument(loaded)
        self._recipe = recipe
        self._seed = seed
        self._seeded = SeededCalls()
        self.labelled = False
        self.label_type: str | None = None

    def __len__(self) -> int:
        return len(self._items.numbers)

    def __getitem__(self, row: int) -> DatasetRow:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[DatasetRow]:
        """Read the items of a batch; a DataLoader calls this."""
        numbers = (self._items.numbers[row] for row in rows)
        # Seeded per item, so that an item does not depend on the process or on other items.
        seeds = {(self._seed + n) % 2**63: n for n in numbers}
        found: list[DatasetRow] = self._items.run(
            lambda: self._seeded.map(lambda seed: self._read(seeds[seed]), list(seeds))
        )
        return found

    def _read(self, number: int) -> DatasetRow:
        try:
            item = self._items.run(lambda: self._items.dataset[number])
            if item is None:
                raise InputError("it is None.")
            # Made first, because it notes whether items have labels.
            value = self._prepare(item)
            return DatasetRow(value, {"item": number, **self._label(item)})
        except Exception as error:
            reason = error.message if isinstance(error, HookscopeError) else cause(error)
            skipped = f"Item {number} of {self._items.name} cannot be used: {reason}"
            return DatasetRow(None, {"item": number, "skipped": skipped})

    def _prepare(self, item: Any) -> Any:
        if self._items.collate:  # it takes the items as the Dataset returns them
            return item
        if python_input.has_label(item, self._one_argument):
            self.labelled = True
            item = item[0]
        if type(item) in (tuple, list) and len(item) == 1:  # from a TensorDataset
            [item] = item
        return python_input.convert_images(item, self._recipe)

    def _label(self, item: Any) -> TableEntry:
        if not (self.labelled and python_input.has_label(item, self._one_argument)):
            return {}
        label = plain_label(item[1])
        if label is None:
            self.label_type = type(item[1]).__name__
            return {}
        return {LABEL: label}

    @property
    def columns(self) -> list[str]:
        """The names of the columns that are stored beside the numbers of the items."""
        return [LABEL] if self.labelled and not self.label_type else []

    def first(self, skip_bad: bool) -> Any:
        """Return the first item that can be used."""
        return first_usable(self, len(self), "items", skip_bad)

    def arrange(self, values: Sequence[Any]) -> Any:
        """Collate items to a call value."""
        items = self._items
        try:
            if collate := items.collate:
                batch = items.run(lambda: collate(list(values)))
            else:
                batch = default_collate(list(values))
        except Exception as error:
            reason = error.message if isinstance(error, HookscopeError) else cause(error)
            raise InputError(
                f"{len(values)} items of {items.name} cannot be collated: {reason}",
                "Give all items one shape, use --batch 1, or use a DataLoader with a collate_fn.",
            ) from error
        if items.collate and python_input.has_label(batch, self._one_argument):
            self.labelled = True
            return python_input.plain_argument(batch[0], items.name)
        return python_input.batch_arguments(batch, items.name)
