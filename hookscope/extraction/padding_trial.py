"""Whether padding changes what a model computes for a text: a trial with two texts."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from hookscope.extraction.batch_runner import BatchRunner
from hookscope.extraction.row_batches import RowBatch
from hookscope.extraction.text_rows import TextRows, token_count

log = logging.getLogger("hookscope")


def tolerates_padding(runner: BatchRunner, rows: TextRows, one: Any, other: Any) -> bool:
    """Whether a text has the same values alone and in a batch with a longer one.

    Same up to rounding: they may differ by the square root of the dtype's epsilon, as a share of
    the largest value of the text. A model that ignores the attention mask differs by far more.
    """
    if not (rows.can_pad(one) and rows.can_pad(other)):
        return False
    short, long = sorted((one, other), key=token_count)
    with runner.forward_passes() as forward:
        alone, both = (
            forward(_batch(rows.arrange(values), len(values)))
            for values in ([short], [long, short])
        )
    for key, column in runner.columns.items():
        mine, padded = alone[key][0], both[key][1]
        if column.tokens is not None:
            padded = padded.narrow(column.tokens, 0, token_count(short))
        if not _close(mine, padded, runner.autocast):
            log.info("batches: texts of one length each, because padding changes %s", key)
            return False
    return True


def _batch(value: Any, rows: int) -> RowBatch:
    return RowBatch(range(rows), value, ({},) * rows, (), token_count(value))


def _close(mine: Tensor, padded: Tensor, autocast: torch.dtype | None) -> bool:
    if not (mine.is_floating_point() or mine.is_complex()):
        return torch.equal(mine, padded)
    tolerance = torch.finfo(autocast or mine.dtype).eps ** 0.5
    finite = mine[mine.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(mine, padded, rtol=0, atol=tolerance * largest, equal_nan=True)
