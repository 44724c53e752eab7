"""Attention masks that leave a row no key: softmax of -inf throughout is NaN, or hides it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from hookscope.execution.forward import forward
from hookscope.execution.prepare import Prepared
from hookscope.files.signatures import signature_of
from hookscope.files.words import ranges_text
from hookscope.hooks.layers import Layer
from hookscope.hooks.module_call import CallSubscriber, ModuleCall
from hookscope.hooks.registry import CallRegistry
from hookscope.results.health import Finding
from hookscope.sources.structure import modules_in
from hookscope.specs.checks import ERROR, MASK, NAN, NOTE, WARNING
from hookscope.specs.module_names import lies_in
from hookscope.tensors.grad_mode import grad_mode, without_grad
from hookscope.tensors.nested import walk

_ENDINGS = ("attention_mask", "attn_mask", "key_padding_mask")
_BOTH = ("attn_mask", "key_padding_mask")  # nn.MultiheadAttention combines them
# Additive masks are -inf, the lowest number of the dtype, or, in early code, -10,000.
MASKED = -1e4


@dataclass(frozen=True)
class MaskedRows:
    """The rows of a mask in which no key is left.

    Attributes:
        names: the arguments that mask them, together if they are two.
        empty: bool (batch or 1, queries or 1).
        padding: whether all of them are queries that are themselves masked as keys.
    """

    names: tuple[str, ...]
    empty: Tensor
    padding: bool

    @property
    def text(self) -> str:
        """Which rows: ``row 1``, ``row 0 (queries 0-2)``."""
        batch, queries = self.empty.shape
        if queries == 1:
            rows = self.empty[:, 0].nonzero().flatten().tolist()
            return f"row{'s' * (len(rows) > 1)} {ranges_text(rows)}"
        texts = []
        for row in self.empty.any(1).nonzero().flatten().tolist():
            numbers = self.empty[row].nonzero().flatten().tolist()
            of_row = f"{'queries' if len(numbers) > 1 else 'query'} {ranges_text(numbers)}"
            texts.append(f"{'every row' if batch == 1 else f'row {row}'} ({of_row})")
        return ", ".join(texts)


@dataclass(frozen=True)
class MaskedCall:
    """A call with such rows."""

    layer: Layer
    number: int
    rows: MaskedRows
    gives_nan: bool


class _MaskFinder(CallSubscriber):
    """Finds the calls of modules with an attention mask, and those with a row without a key."""

    def __init__(self) -> None:
        self.masks = 0
        self.calls: list[MaskedCall] = []

    def needs_begin(self, layer: Layer) -> bool:
        """The arguments are read after the call."""
        return False

    @without_grad
    def after_call(self, call: ModuleCall, state: None) -> None:
        """Look at the masks of a call."""
        masks = dict(_masks_of(call))
        self.masks += len(masks)
        for rows in masked_rows(call.module, masks):
            given, made = (_has_nan(x) for x in ((call.args, call.kwargs), call.output))
            self.calls.append(MaskedCall(call.layer, call.number, rows, made and not given))


def _masks_of(call: ModuleCall) -> Iterator[tuple[str, Tensor]]:
    names = signature_of(call.module.forward).parameters
    for name, value in (dict(zip(names, call.args, strict=False)) | call.kwargs).items():
        is_mask = name.endswith(_ENDINGS) and isinstance(value, Tensor)
        if is_mask and 1 <= value.ndim <= 4 and value.numel():
            yield name, value


def _has_nan(value: Any) -> bool:
    tensors = (tensor for _, tensor in walk(value) if tensor.is_floating_point())
    return any(bool(tensor.isnan().any()) for tensor in tensors)


def masked_rows(module: nn.Module, masks: Mapping[str, Tensor]) -> Iterator[MaskedRows]:
    """Yield the rows without a key of each mask, or else of two that are used together."""
    blocked = {name: _blocked(module, name, mask) for name, mask in masks.items()}
    found = [rows for name, one in blocked.items() if (rows := _rows((name,), one)) is not None]
    if not found and isinstance(module, nn.MultiheadAttention) and set(_BOTH) <= blocked.keys():
        together = _rows(_BOTH, blocked[_BOTH[0]] | blocked[_BOTH[1]])
        found += [] if together is None else [together]
    yield from found


def _blocked(module: nn.Module, name: str, mask: Tensor) -> Tensor:
    """Where attention must not look: bool (batch, heads, queries, keys); 1 for a dimension less."""
    of_torch = isinstance(module, nn.MultiheadAttention)
    # True is where torch's module must not look; for functions and other libraries, where it may.
    passed_on = name == _BOTH[0] and any(
        isinstance(x, nn.MultiheadAttention) for x in modules_in(module)
    )
    inverted = passed_on or name.endswith(_BOTH[1])
    if mask.is_floating_point():
        weights = bool(((mask == 0) | (mask == 1)).all()) and bool(mask.any())
        blocked = mask == 0 if weights and not inverted else mask <= MASKED
    else:
        blocked = mask != 0 if inverted else mask == 0
    if blocked.ndim == 4:
        return blocked
    if blocked.ndim == 3:
        return blocked.unflatten(0, (-1, module.num_heads)) if of_torch else blocked[:, None]
    if blocked.ndim == 2 and name.endswith(("attention_mask", "key_padding_mask")):
        return blocked[:, None, None]  # of each row of the batch, for all queries
    return blocked.reshape(1, 1, -1, blocked.shape[-1])


def _rows(names: tuple[str, ...], blocked: Tensor) -> MaskedRows | None:
    empty = blocked.all(3)  # (batch, heads, queries)
    if not empty.any():
        return None
    queries, keys = blocked.shape[2:]
    padding = False
    if queries == keys > 1:
        whole = empty.all(2, keepdim=True)
        padding = not bool((empty & (~blocked.all(2) | whole)).any())
    return MaskedRows(names, empty.any(1), padding)


def mask_findings(prepared: Prepared) -> tuple[list[Finding], str]:
    """Return the modules that get a mask with such rows, and why none was checked, if so."""
    finder = _MaskFinder()
    calls = CallRegistry(prepared.module)
    with grad_mode(False), prepared.preserved(), calls.subscribed(finder, prepared.layers):
        forward(prepared)
    if not finder.masks:
        return [], "no module gets an attention mask"
    groups: dict[str, list[MaskedCall]] = {}
    for call in _innermost(finder.calls):
        groups.setdefault(f"{call.rows.names} {call.rows.text}", []).append(call)
    return [_finding(group) for group in groups.values()], ""


def refer_to_masks(findings: Iterable[Finding], masks: Sequence[Finding]) -> Iterator[Finding]:
    """Yield findings; the hint of NaN that a mask causes refers to the finding of the mask."""
    layers = [name for one in masks if one.level == ERROR for name in (one.layer, *one.others)]
    for one in findings:
        if one.check == NAN and any(
            lies_in(name, one.layer) or lies_in(one.layer, name) for name in layers
        ):
            yield replace(one, hint="A mask leaves softmax no key: see the finding of mask.")
        else:
            yield one


def _innermost(calls: Sequence[MaskedCall]) -> Iterator[MaskedCall]:
    """The calls of modules in which no other one got such a mask: there it is used."""
    names = {call.layer.name for call in calls}
    for call in calls:
        name = call.layer.name
        if not any(lies_in(other, name) for other in names - {name}):
            yield call


def _finding(group: Sequence[MaskedCall]) -> Finding:
    first, rows = group[0], group[0].rows
    verb = "masks" if len(rows.names) == 1 else "together mask"
    number = f" in call {first.number}" if first.number > 1 else ""
    message = f"{' and '.join(rows.names)} {verb} every key of {rows.text}{number}"
    level = ERROR if first.gives_nan else NOTE if rows.padding else WARNING
    hints = {
        ERROR: "The output has NaN, as softmax gives without a key: leave each row one key.",
        NOTE: "These queries are padding themselves, so nothing should use their output.",
        WARNING: "The output has no NaN, which hides it: such a row gets the mean of all values, or"
        " zeros. Leave each row one key, or do not use its output.",
    }
    others = dict.fromkeys(call.layer.name for call in group)
    others.pop(first.layer.name)
    number_of_rows = int(rows.empty.sum())
    return Finding(
        MASK,
        level,
        first.layer.name,
        message,
        number_of_rows,
        0,
        hints[level],
        tuple(others),
    )
