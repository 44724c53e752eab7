"""Whether each row of a batch has the same values alone, in another order, and with more padding.

Rounding differs, because other kernels run for other sizes. How much of a row's norm may change by
rounding is ``rounding_limit``. Only tensors whose first dimension is the batch in all runs are
compared, which shows in their shapes: as many rows as the batch has, and one for a row alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hookscope.errors import ForwardError, RequestError
from hookscope.execution.prepare import Prepared
from hookscope.execution.verification import bit_identical
from hookscope.files.signatures import signature_of
from hookscope.files.words import percent_text, plural
from hookscope.hooks.layers import BATCH_NORMS, submodule
from hookscope.model_analysis.health.compared_runs import (
    FROM_OUTSIDE,
    Place,
    differs_before,
    run_values,
    stored_values,
)
from hookscope.results.health import Finding
from hookscope.specs.checks import BATCH, NOTE, WARNING
from hookscope.specs.module_names import lies_in
from hookscope.specs.tensor_key import OUTPUT
from hookscope.tensors.nested import as_call, map_tensors, walk
from hookscope.tensors.tensor_stats import euclidean_norm

ALONE = 8  # rows that are run alone: the first ones
LONGER = 16  # positions of padding that are added, at most as many as there are
# Rounding errors of a sum of n terms grow as sqrt(n) times the unit roundoff with high probability
# (Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019), here of 4,096 terms. Half precision is summed
# in float32 and rounded once, so a few units of its own are enough. Errors of the layers before
# add up as independent ones do, with the square root of their number.
SUMMED = 64.0
ROUNDED = 4.0
# The value of an attention mask at padding, by the name of the argument.
PADDING = {
    "attention_mask": 0,
    "mask": 0,
    "padding_mask": 1,
    "key_padding_mask": 1,
    "src_key_padding_mask": 1,
}


def rounding_limit(dtype: torch.dtype, number: int) -> float:
    """Return the change of a row, relative to its norm, that rounding explains.

    Args:
        dtype: the dtype of the row.
        number: how many modules and functions have run up to the row, itself included.
    """
    sums = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    return (SUMMED * sums + ROUNDED * torch.finfo(dtype).eps) * math.sqrt(number)


@dataclass(frozen=True)
class RowChange:
    """The largest change of a row at one place, relative to the row's norm."""

    row: int
    size: float


@dataclass(frozen=True)
class Variation:
    """Another run of some rows of the batch.

    Attributes:
        when: the end of the sentence "row 0 changes ...".
        prepared: the run.
        rows: in the batch, of each row of the run.
        copies: how often the run has all of them.
        longer: positions of padding that were added.
        kept: bool (rows, positions): which are not padding in the batch.
    """

    when: str
    prepared: Prepared
    rows: tuple[int, ...]
    copies: int = 1
    longer: int = 0
    kept: Tensor | None = None


@dataclass
class RowComparison:
    """How the values of a batch change in runs of one kind of variation.

    Attributes:
        base: the values of the batch.
        changes: the largest change at each place.
        compared: the number of runs in which a place was compared.
        received: the length that each run made at a place, of the batch or not.
        longer: the places that have a dimension of positions.
    """

    base: dict[Place, Tensor]
    changes: dict[Place, RowChange] = field(default_factory=dict)
    compared: Counter[Place] = field(default_factory=Counter)
    received: dict[Place, list[int]] = field(default_factory=dict)
    longer: set[Place] = field(default_factory=set)

    def run(self, variation: Variation) -> None:
        """Run a variation and compare its values, also those of a run that fails then."""
        run_values(variation.prepared, partial(self._compare, variation))

    def _compare(self, variation: Variation, place: Place, tensor: Tensor) -> None:
        if tensor.ndim and variation.copies == 1:
            self.received.setdefault(place, []).append(len(tensor))
        base = self.base.get(place)
        if base is None or base.dtype != tensor.dtype or base.element_size() < 2:
            return  # of float8 there is no arithmetic
        pair = _aligned(base, tensor, variation) if base.is_floating_point() else None
        if pair is None:
            return
        self.compared[place] += 1
        if tensor.shape[1:] != base.shape[1:]:
            self.longer.add(place)
        sizes = row_changes(*pair)
        row = int(sizes.argmax())
        before = self.changes.get(place)
        if before is None or float(sizes[row]) > before.size:
            self.changes[place] = RowChange(variation.rows[row], float(sizes[row]))


def _aligned(base: Tensor, tensor: Tensor, variation: Variation) -> tuple[Tensor, Tensor] | None:
    """The same rows and positions of a value in the batch and in a variation; None if unknown."""
    rows, kept = list(variation.rows), variation.kept
    if not base.ndim or tensor.ndim != base.ndim or len(base) <= max(rows):
        return None
    if len(tensor) != len(rows) * variation.copies:
        return None
    chosen, tensor = base[rows], tensor[: len(rows)]
    padding = torch.zeros((), dtype=torch.bool, device=base.device)
    for dim, (length, now) in enumerate(zip(chosen.shape[1:], tensor.shape[1:], strict=True), 1):
        if now not in (length, length + variation.longer):
            return None
        if now != length and kept is not None and kept.shape[1] == length:
            shape = [len(kept), *[1] * (base.ndim - 1)]
            shape[dim] = length
            padding = padding | ~kept.reshape(shape)  # what is computed there is of no use
        tensor = tensor.narrow(dim, 0, length)
    return chosen.masked_fill(padding, 0), tensor.masked_fill(padding, 0)


def row_changes(a: Tensor, b: Tensor) -> Tensor:
    """Return the norm of the difference of each row, over the larger norm of the row.

    >>> row_changes(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[3.0, 3.0], [0.0, 0.0]]))
    tensor([0.2000, 0.0000])
    """
    dtype = torch.promote_types(a.dtype, torch.float32)
    a, b = (x.reshape(len(x), -1).to(dtype) for x in (a, b))
    if not a.shape[1]:
        return torch.zeros(len(a))
    same = (a == b) | (a.isnan() & b.isnan())
    difference = euclidean_norm(torch.where(same, 0, a - b), 1)
    sizes = [euclidean_norm(torch.where(x.isfinite(), x, 0), 1) for x in (a, b)]
    # A difference that is not finite is infinite: one of the two rows is not.
    share = (difference / torch.maximum(*sizes)).nan_to_num(torch.inf, torch.inf)
    return torch.where(same.all(1), 0, share)


def row_count(prepared: Prepared) -> int:
    """Return the number of rows of the input; raise RequestError if there are not several."""
    args, _ = as_call(prepared.value)
    if args and isinstance(args[0], list):
        raise RequestError(
            "The check batch compares the rows of tensors, and the input of this model is a list.",
            "Leave out this check.",
        )
    sizes = [tensor.shape[0] for _, tensor in walk(as_call(prepared.value)) if tensor.ndim]
    if not sizes or sizes[0] < 2:
        raise RequestError(
            "The check batch compares the rows of a batch, and the input has no second row.",
            "Give several: a folder, several texts, or a --shape that begins with 2 or more.",
        )
    return sizes[0]


def batch_findings(prepared: Prepared) -> tuple[list[Finding], str]:
    """Return where a row first depends on the batch, and why this was not checked, if so."""
    rows = row_count(prepared)
    base = stored_values(prepared)
    alone, when = _compare_alone(prepared, base, rows)
    if alone is None:
        return [], when
    number = min(rows, ALONE)
    batched = [p for p, value in base.items() if alone.compared[p] == number and len(value) == rows]
    if not batched:
        return [], "no output of a layer has a first dimension of the rows"
    comparisons = {when: alone}
    notes: list[Finding] = []
    order = tuple(reversed(range(rows)))
    turned = Variation("in another order of the rows", _rows_of(prepared, rows, order), order)
    for variation in filter(None, (turned, longer_padding(prepared, rows))):
        comparison = comparisons[variation.when] = RowComparison(base)
        try:
            comparison.run(variation)
        except ForwardError as error:
            message = f"fails {variation.when}, which is not compared: {error.message}"
            notes.append(Finding(BATCH, NOTE, error.layer, message, 0))
    return [*_first_finding(prepared, base, comparisons, frozenset(batched)), *notes], ""


def _compare_alone(
    prepared: Prepared, base: dict[Place, Tensor], rows: int
) -> tuple[RowComparison | None, str]:
    """Compare the first rows, each alone; if the model fails with one row, each with its copy.

    Returns the comparison, and how the rows ran, or why none did.
    """
    reason = ""
    for copies, when in (
        (1, "when it runs alone"),
        (2 if rows != 2 else 3, "in a batch of its copies"),
    ):
        comparison = RowComparison(base)
        try:
            for row in range(min(rows, ALONE)):
                part = _rows_of(prepared, rows, [row] * copies)
                comparison.run(Variation(when, part, (row,), copies))
        except ForwardError as error:
            reason = reason or f"a row alone failed: {error.message.rstrip('.')}"
        else:
            return comparison, when
    return None, reason


def _rows_of(prepared: Prepared, rows: int, chosen: Sequence[int]) -> Prepared:
    """The run of chosen rows; tensors without a row for each are passed as they are."""
    given, names = _arguments(prepared)
    whole = {id(given.get(name)) for name in _position_masks(names)}

    def take(path: tuple[str, ...], tensor: Tensor) -> Tensor:
        is_whole = (
            not tensor.ndim or len(tensor) != rows or (tensor.ndim == 2 and id(tensor) in whole)
        )
        return tensor if is_whole else tensor[list(chosen)]

    return replace(prepared, value=map_tensors(prepared.value, take))


def _arguments(prepared: Prepared) -> tuple[dict[str, Any], list[str]]:
    """The arguments of the model by their names, and the names of all its parameters in order."""
    args, kwargs = as_call(prepared.value)
    parameters = signature_of(prepared.module.forward).parameters.values()
    names = [one.name for one in parameters if one.kind is not one.VAR_POSITIONAL]
    return dict(zip(names, args, strict=False)) | kwargs, names


def _position_masks(names: Sequence[str]) -> set[str]:
    """Which parameters are, in two dimensions, masks of queries and keys, as in ``torch.nn``."""
    found = {"attn_mask", "src_mask", "tgt_mask", "memory_mask"}
    return found | {"mask"} if "src_key_padding_mask" in names else found


def longer_padding(prepared: Prepared, rows: int) -> Variation | None:
    """Return the run with more padding; None if the model takes no attention mask."""
    args, _ = as_call(prepared.value)
    given, names = _arguments(prepared)
    of_rows = [x for x in PADDING if x not in _position_masks(names)]
    name = next((x for x in of_rows if _is_mask(given.get(x), rows)), "attention_mask")
    mask = given.get(name)
    tokens = given.get("input_ids", given.get("inputs_embeds", mask))
    if mask is None and name in names and isinstance(tokens, Tensor) and tokens.ndim > 1:
        mask = given[name] = torch.ones_like(tokens.flatten(2)[..., 0], dtype=torch.long)
    if not isinstance(mask, Tensor) or mask.ndim != 2 or len(mask) != rows:
        return None
    longer = min(mask.shape[1], LONGER)
    fill = {name: PADDING[name]}
    token = getattr(getattr(prepared.module, "config", None), "pad_token_id", None)
    if token is not None:
        fill["input_ids"] = token
    for key, tensor in given.items():
        of_tokens = isinstance(tensor, Tensor) and tensor.shape[:2] == mask.shape
        if of_tokens and not key.startswith("decoder_"):
            last = tensor[:, -1:]
            more = torch.full_like(last, fill[key]) if key in fill else last
            given[key] = torch.cat([tensor, *[more] * longer], 1)
    positional = [given.pop(key) for key in names[: len(args)]]
    run = replace(prepared, value=((*positional, *args[len(positional) :]), given))
    every = tuple(range(rows))
    return Variation("with longer padding", run, every, longer=longer, kept=mask != PADDING[name])


def _is_mask(value: Any, rows: int) -> bool:
    return isinstance(value, Tensor) and value.ndim == 2 and len(value) == rows


def _first_finding(
    prepared: Prepared,
    base: dict[Place, Tensor],
    comparisons: dict[str, RowComparison],
    batched: frozenset[Place],
) -> Iterator[Finding]:
    """The first place where a row changes by more than rounding, if an output of a module does.

    A function alone is not enough: a difference of equal numbers is rounding throughout.
    """
    first: tuple[Place, str, float] | None = None
    for number, (place, value) in enumerate(base.items(), 1):
        if place not in batched:
            continue
        limit = rounding_limit(value.dtype, number)
        changes = {when: one.changes.get(place) for when, one in comparisons.items()}
        when = next((w for w, change in changes.items() if change and change.size > limit), "")
        if when:
            first = first or (place, when, limit)
        if first is not None and when and place.kind == OUTPUT:
            yield _finding(prepared, base, comparisons, *first)
            return


def _finding(
    prepared: Prepared,
    base: dict[Place, Tensor],
    comparisons: dict[str, RowComparison],
    place: Place,
    when: str,
    limit: float,
) -> Finding:
    random = _first_random(prepared, base)
    places = list(base)
    if random is not None and places.index(random) <= places.index(place):
        other = replace(prepared, seed=prepared.seed + 1)
        what = "draws random numbers"
        hint = "Build the model without them: F.dropout needs training=self.training in eval mode."
        if differs_before(prepared, other, random):
            what, hint = "gets other values from outside PyTorch", FROM_OUTSIDE
        elif prepared.train:
            hint = "Leave out --train, or build the model without dropout."
        message = f"{what}{random.source}, so later layers are not compared"
        return Finding(BATCH, NOTE, random.module, message, 0, None, hint)
    change = comparisons[when].changes[place]
    message = f"row {change.row} changes {_size_text(change.size)}{place.source} {when}"
    module = submodule(prepared.module, place.module)
    hint = _padding_cause(place, comparisons[when]) if comparisons[when].longer else ""
    if isinstance(module, BATCH_NORMS):
        hint = _norm_cause(module)
    hint = hint or _limit_cause(place, base, next(iter(comparisons.values())))
    return Finding(BATCH, WARNING, place.module, message, change.size, limit, hint)


def _size_text(size: float) -> str:
    if math.isinf(size):
        return "between finite numbers and others"
    return f"by {size:.3g} times its norm" if size > 1 else f"by {percent_text(size)}"


def _norm_cause(module: Any) -> str:
    if module.running_mean is None:
        return "It has no running statistics, so it normalizes with those of the batch."
    return (
        "Batch normalization in training mode uses the statistics of the batch; in eval mode it"
        " uses its running statistics."
    )


def _padding_cause(place: Place, comparison: RowComparison) -> str:
    if place in comparison.longer:
        return "It mixes real positions with the padding: use the attention mask in it."
    return "It reads the padding: leave it out with the attention mask, as in a masked mean."


def _limit_cause(place: Place, base: dict[Place, Tensor], alone: RowComparison) -> str:
    """The hint for a module in which another one, such as an expert, gets a share of the rows."""
    found: list[tuple[str, int, int]] = []
    for inner, lengths in alone.received.items():
        inside = lies_in(inner.module, place.module) and inner.module != place.module
        if inside and inner in base and len(base[place]) <= ALONE:
            length = len(base[inner])
            if length not in (len(base[place]), sum(lengths), *lengths):
                found.append((inner.module, length, sum(lengths)))
    if found:
        name, length, number = min(found, key=lambda one: one[0].count("."))
        return (
            f"{name} gets {plural(length, 'row')} in the batch, and {number} when each row runs"
            " alone: a capacity that the rows share drops some."
        )
    return "Look for statistics over the first dimension, or a limit that the rows share."


def _first_random(prepared: Prepared, base: dict[Place, Tensor]) -> Place | None:
    """The first place that has other values from another seed."""
    different: set[Place] = set()

    def compare(place: Place, tensor: Tensor) -> None:
        if place in base and not bit_identical(base[place], tensor):
            different.add(place)

    run_values(replace(prepared, seed=prepared.seed + 1), compare)
    return next((place for place in base if place in different), None)
