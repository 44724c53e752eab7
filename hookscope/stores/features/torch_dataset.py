"""Rows of features as tensors, and as a dataset for a DataLoader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from hookscope.stores.weights.weight_dtypes import WIDENED

# Dtypes that numpy does not have and reads as integers, by their names in the format.
_NOT_IN_NUMPY = {tag: getattr(torch, name) for name, tag in WIDENED.items()}


def to_tensor(bits: NDArray[Any], dtype: str) -> Tensor:
    """Return the tensor of ``bits``; ``dtype`` is the format's name."""
    # asarray, because an index of only integers gives a scalar; contiguous, because torch has no
    # negative strides.
    tensor = torch.from_numpy(np.require(np.asarray(bits), requirements=["C", "W", "O"]))
    return tensor.view(_NOT_IN_NUMPY[dtype]) if dtype in _NOT_IN_NUMPY else tensor


class TensorRows:
    """All rows of one key. An index reads only the rows it selects, and returns a tensor."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Tensor:
        return to_tensor(self._rows.bits(index), self._rows.format)

    @property
    def shape(self) -> torch.Size:
        """The number of rows, then the shape of one row."""
        return torch.Size(self._rows.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the tensors."""
        return self[:0].dtype


class RowsDataset(Dataset[Any]):
    """The rows of one key. An item is a tensor, or a pair of a tensor and its input's path."""

    def __init__(self, rows: Any, inputs: Sequence[dict[str, Any]] | None) -> None:
        self._rows = TensorRows(rows)
        self._inputs = inputs

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> Any:
        tensor = self._rows[row]
        return tensor if self._inputs is None else (tensor, self._inputs[row]["path"])

    def __getitems__(self, rows: list[int]) -> list[Any]:
        """Return the items of a batch, read together."""
        tensors = list(self._rows[rows])
        if self._inputs is None:
            return tensors
        return [(t, self._inputs[row]["path"]) for t, row in zip(tensors, rows, strict=True)]
