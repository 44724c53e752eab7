"""Which tensors of texts have a vector for each token, and what can be stored of them."""

from __future__ import annotations

from hookscope.errors import LayerError
from hookscope.extraction.axes import Axes, infer_axes
from hookscope.extraction.shape_probe import RecordColumn
from hookscope.specs.reduction import CLS, FIRST, LAST, MAX, MEAN, TOKENS, TOPK, Reduction

_ANY_LENGTH = (MEAN, MAX, FIRST, LAST, CLS)  # without naming the tokens as what is reduced


def axes_of(column: RecordColumn, image: tuple[int, int] | None) -> Axes:
    """Return the dimensions of a column; of texts those that a trial with two lengths has found."""
    if column.tokens is None:
        return infer_axes(column.record.type, column.shape, image)
    return Axes(2 - column.tokens, (1 + column.tokens,), TOKENS)


def has_tokens(column: RecordColumn, axes: Axes, length: int | None) -> bool:
    """Whether the positions of a column are the tokens of the text."""
    if column.tokens is not None:
        return True
    return axes.kind == TOKENS and column.shape[axes.positions[0] - 1] == length


def stores_positions(reduction: Reduction | None) -> bool:
    """Whether what is stored of tokens says which of them a value is of."""
    if reduction is None:
        return True
    forms = {MAX: (None, TOKENS), TOPK: (TOKENS,)}
    return reduction.over in forms.get(reduction.name, ())


def check_reduces_tokens(column: RecordColumn, reduction: Reduction | None) -> None:
    """Raise LayerError unless rows with different numbers of tokens get one shape."""
    key, known = column.record.key, f"{', '.join(_ANY_LENGTH)}, topk:K:tokens"
    if reduction is None:
        raise LayerError(
            f"{key} has a vector for each token, and the texts differ in length.",
            f"Store one vector of each text: --reduce mean or last. All choices: {known}.",
        )
    if reduction.name in _ANY_LENGTH and reduction.over in (None, TOKENS):
        return
    if reduction.name == TOPK and reduction.over == TOKENS:
        return
    near = f"Write topk:{reduction.count}:tokens, for the largest values of each channel."
    raise LayerError(
        f"--reduce {reduction.text} cannot be applied to {key}: the texts differ in length.",
        near if reduction.name == TOPK else f"Choose among {known}.",
    )
