"""Attention masks that leave a row no key: softmax of -inf throughout is NaN, or hides it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from hookscope.execution.forward import forward
from hookscope.execution.prepare import Prepared
from hookscope.files.words import ranges_text
from hookscope.hooks.hook_set import HookSet
from hookscope.hooks.layers import Layer
from hookscope.hooks.module_call import CallSubscriber, ModuleCall
from hookscope.hooks.registry import CallRegistry
from hookscope.results.health import Finding
from hookscope.specs.checks import ERROR, MASK, NOTE, WARNING
from hookscope.specs.module_names import lies_in
from hookscope.tensors.grad_mode import grad_mode, without_grad
from hookscope.tensors.nested import walk

_ENDINGS = ("attention_mask", "attn_mask", "key_padding_mask")
# In these a bool mask is True where attention must not look; elsewhere where it may.
_OF_TORCH = (
    *(nn.MultiheadAttention, nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder),
    *(nn.TransformerEncoderLayer, nn.TransformerDecoderLayer),
)
# Two masks that are combined, in torch's modules: of queries and keys, and of padding.
_PAIRS = (
    ("attn_mask", "key_padding_mask"),
    ("mask", "src_key_padding_mask"),
    ("src_mask", "src_key_padding_mask"),
    ("tgt_mask", "tgt_key_padding_mask"),
    ("memory_mask", "memory_key_padding_mask"),
)
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
    signature = inspect.signature(call.module.forward)
    try:
        given: Mapping[str, Any] = signature.bind_partial(*call.args, **call.kwargs).arguments
    except TypeError:
        given = {}
    of_torch = isinstance(call.module, _OF_TORCH)
    known = {name for pair in _PAIRS for name in pair}
    for name, value in {**given, **call.kwargs}.items():
        named = name.endswith(_ENDINGS) or (of_torch and name in known)
        if named and isinstance(value, Tensor) and 1 <= value.ndim <= 4 and value.numel():
            yield name, value


def _has_nan(value: Any) -> bool:
    tensors = (tensor for _, tensor in walk(value) if tensor.is_floating_point())
    return any(bool(tensor.isnan().any()) for tensor in tensors)


def masked_rows(module: nn.Module, masks: Mapping[str, Tensor]) -> Iterator[MaskedRows]:
    """Yield the rows without a key of each mask, and of each two that are used together."""
    heads = getattr(module, "num_heads", getattr(module, "nhead", 1))
    blocked = {
        name: _with_dims(name, _blocked(module, name, mask), heads) for name, mask in masks.items()
    }
    for name, one in blocked.items():
        pairs = [pair for pair in _PAIRS if name in pair and set(pair) <= blocked.keys()]
        found = _rows((name,), one)
        if found is not None:
            yield found
        for pair in pairs:
            if name == pair[0] and all(_rows((x,), blocked[x]) is None for x in pair):
                together = _rows(pair, blocked[pair[0]] | blocked[pair[1]])
                if together is not None:
                    yield together


def _blocked(module: nn.Module, name: str, mask: Tensor) -> Tensor:
    """Where attention must not look, bool in the shape of a mask of any kind."""
    inverted = isinstance(module, _OF_TORCH) or name.endswith("key_padding_mask")
    if not mask.is_floating_point():
        return mask != 0 if inverted else mask == 0
    zeros_and_ones = bool(((mask == 0) | (mask == 1)).all()) and bool(mask.any())
    return mask == 0 if zeros_and_ones and not inverted else mask <= MASKED


def _with_dims(name: str, blocked: Tensor, heads: int) -> Tensor:
    """The mask as (batch, heads, queries, keys); a dimension that it lacks has size 1."""
    if blocked.ndim == 4:
        return blocked
    if blocked.ndim == 3:
        several = heads > 1 and len(blocked) % heads == 0
        return blocked.unflatten(0, (-1, heads)) if several else blocked[:, None]
    of_batch = name.endswith(("attention_mask", "padding_mask"))
    if blocked.ndim == 2 and of_batch:
        return blocked[:, None, None]
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
    calls = CallRegistry(prepared.module, HookSet(prepared.module))
    with grad_mode(False), prepared.preserved(), calls.subscribed(finder, prepared.layers):
        forward(prepared)
    if not finder.masks:
        return [], "no module gets an attention mask"
    groups: dict[str, list[MaskedCall]] = {}
    for call in _innermost(finder.calls):
        groups.setdefault(f"{call.rows.names} {call.rows.text}", []).append(call)
    return [_finding(group) for group in groups.values()], ""


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
