"""Chosen tensors of weights as ``show`` presents them: one with its values, or rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hookscope.file_analysis.weights.weight_reader import WeightReader
from hookscope.files.progress import NamedProgress
from hookscope.specs.tensor_key import WHOLE, Index, choose_keys, modules_above
from hookscope.stores.weights.weight_set import WeightSet
from hookscope.views.images.tensor_view import TensorSummary, read_tensor_view, summarize_tensor

_PASSES = 3  # over a tensor with its values: statistics, the largest entries, the histogram


@dataclass(frozen=True)
class WeightChoice:
    """The tensors of a set that somebody wants to see."""

    weights: WeightSet
    parts: tuple[tuple[str, Index], ...]
    is_table: bool

    def read(self, progress: NamedProgress | None = None) -> list[TensorSummary]:
        """Return what the tensors hold: in a table a ``TensorSummary``, else a ``TensorView``."""
        reader = WeightReader(self.weights)
        if progress is not None:
            sizes = (self.weights.tensors[name].nbytes for name, i in self.parts if i == WHOLE)
            reader.show_progress(sum(sizes) * (1 if self.is_table else _PASSES), progress)
        view = summarize_tensor if self.is_table else read_tensor_view
        return [view(reader, name, index) for name, index in self.parts]


def choose_weights(weights: WeightSet, keys: Sequence[str]) -> WeightChoice:
    """Return the tensors that keys select; those of a module, or of a glob, make a table.

    Example:
        >>> from hookscope.stores.weights.open_weights import open_weights
        >>> choice = choose_weights(open_weights("sample_models/digits.safetensors"), ["fc"])
        >>> [name for name, index in choice.parts], choice.is_table
        (['fc.bias', 'fc.weight'], True)
    """
    names = list(weights.tensors)
    parts = choose_keys(keys, names, weights.label, holders=modules_above)
    return WeightChoice(weights, tuple(parts), is_table=len(parts) > len(keys))
