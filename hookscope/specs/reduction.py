"""What is stored of a dataset's rows: a reduction, a dtype, or only statistics.

Torch-free, so that a mistake is reported at once. ``extraction/reducer.py`` carries it out.
"""

from __future__ import annotations

from dataclasses import dataclass

from hookscope.errors import RequestError
from hookscope.files.suggestions import did_you_mean

MEAN, MAX, FLATTEN = "mean", "max", "flatten"
FIRST, LAST, CLS = "first", "last", "cls"  # one token
TOPK, PCA, HISTOGRAM = "topk", "pca", "histogram"
SPACE, TOKENS, ALL = "space", "tokens", "all"
INDEX_SUFFIX = ".index"  # added to the key of values that were chosen: their indices

COUNTED = (TOPK, PCA)  # these take a number K
OVER = (SPACE, TOKENS, ALL)
_WHOLE = (FIRST, LAST, CLS, FLATTEN)  # these always reduce the same axes
FORMS = (MEAN, MAX, FIRST, LAST, CLS, FLATTEN, "topk:K", "pca:K", HISTOGRAM)
_NAMES = tuple(form.partition(":")[0] for form in FORMS)

FLOAT16, BFLOAT16, INT8 = "float16", "bfloat16", "int8"
STORE_DTYPES = (FLOAT16, BFLOAT16, INT8)


@dataclass(frozen=True)
class Reduction:
    """How each row of a layer's tensor becomes smaller."""

    text: str
    name: str
    count: int = 0
    over: str | None = None


@dataclass(frozen=True)
class StorageOptions:
    """What is stored of the rows."""

    reduction: Reduction | None = None
    dtype: str | None = None
    stats_only: bool = False


def parse_storage(reduce: str | None, store_dtype: str | None, stats_only: bool) -> StorageOptions:
    """Parse the keywords of ``hookscope.extract`` that say what is stored."""
    if store_dtype is not None and store_dtype not in STORE_DTYPES:
        raise RequestError(
            f"{store_dtype!r} is not a valid dtype to store.",
            did_you_mean(store_dtype, STORE_DTYPES) or f"Choose among {', '.join(STORE_DTYPES)}.",
        )
    if stats_only and (reduce or store_dtype):
        other = "--reduce" if reduce else "--store-dtype"
        raise RequestError(
            f"--stats-only stores no rows, so {other} has no effect.",
            "Leave out one of the two.",
        )
    return StorageOptions(parse_reduction(reduce) if reduce else None, store_dtype, stats_only)


def parse_reduction(spec: str) -> Reduction:
    """Parse a reduction: ``NAME[:K][:OVER]``.

    Example:
        >>> parse_reduction("topk:5")
        Reduction(text='topk:5', name='topk', count=5, over=None)
        >>> parse_reduction("mean:tokens").over
        'tokens'
    """
    name, *rest = spec.split(":")
    if name not in _NAMES:
        known = f"Choose among {', '.join(FORMS)}."
        raise RequestError(
            f"{spec!r} is not a valid reduction.", did_you_mean(name, _NAMES) or known
        )
    count = 0
    if name in COUNTED:
        number = rest.pop(0) if rest else ""
        if not (number.isascii() and number.isdigit()) or int(number) < 1:
            raise RequestError(
                f"{spec!r} has no valid number of values to store.",
                f"Write {name}:10, for example.",
            )
        count = int(number)
    over = rest.pop(0) if rest else None
    if over is not None and name in _WHOLE:
        raise RequestError(
            f"{name} always reduces the same axes and does not take {over!r}.", f"Write {name}."
        )
    if rest or over not in (None, *OVER):
        wrong = rest[0] if rest else str(over)
        raise RequestError(
            f"{wrong!r} in {spec!r} is not a valid choice of axes.",
            did_you_mean(wrong, OVER) or f"Choose among {', '.join(OVER)}.",
        )
    return Reduction(spec, name, count, over)
