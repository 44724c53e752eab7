"""Rows of a dataset's features as torch's tensors, and as a dataset for a DataLoader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

# As the format names them: the dtypes that numpy has not, whose bits it holds as integers.
_NARROW = {
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
}


def to_tensor(bits: NDArray[Any], dtype: str) -> Tensor:
    """Return the tensor that ``bits`` holds; ``dtype`` as the format names it."""
    # asarray, since an index of integers alone gives a scalar; contiguous, since torch has no
    # negative strides.
    tensor = torch.from_numpy(np.require(np.asarray(bits), requirements=["C", "W", "O"]))
    return tensor.view(_NARROW[dtype]) if dtype in _NARROW else tensor


class TensorRows:
    """All rows of one key; what an index asks for is read and comes as a tensor.

    Args:
        rows: the same as numpy's arrays.
    """

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Tensor:
        return to_tensor(self._rows.bits(index), self._rows.format)

    @property
    def shape(self) -> torch.Size:
        """Rows, then what one row has."""
        return torch.Size(self._rows.shape)

    @property
    def dtype(self) -> torch.dtype:
        """That of the tensors."""
        return self[:0].dtype


class RowsDataset(Dataset[Any]):
    """One key's rows, one item each: a tensor, or with paths the pair of it and its input's path.

    Args:
        rows: what holds them.
        inputs: where each row came from, for the paths; None to leave them out.
    """

    def __init__(self, rows: Any, inputs: Sequence[dict[str, Any]] | None) -> None:
        self._rows = TensorRows(rows)
        self._inputs = inputs

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> Any:
        tensor = self._rows[row]
        return tensor if self._inputs is None else (tensor, self._inputs[row]["path"])

    def __getitems__(self, rows: list[int]) -> list[Any]:
        """Return the items of a batch, which are read together."""
        tensors = list(self._rows[rows])
        if self._inputs is None:
            return tensors
        return [(t, self._inputs[row]["path"]) for t, row in zip(tensors, rows, strict=True)]
