"""The token embeddings of a model: its input as numbers that a score can be differentiated by.

The first module that makes vectors of token ids is found from a run; then its output is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hookscope.errors import InputError, RequestError
from hookscope.execution.forward import forward
from hookscope.execution.isolation import disable_mha_fast_path
from hookscope.execution.prepare import Prepared
from hookscope.execution.prompt_tokens import prompt_tokens
from hookscope.files.words import shape_text
from hookscope.hooks.layers import Layer, layers_of
from hookscope.hooks.module_call import CallSubscriber, ModuleCall
from hookscope.hooks.registry import CallRegistry
from hookscope.model_analysis.cams.score_gradients import differentiable
from hookscope.results.tokens import PromptTokens
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.nested import as_call, detach_clone, walk

_AT_ONCE = 4096  # tokens that are embedded together


@dataclass(frozen=True)
class EmbeddingCall:
    """The call of the module that embeds the tokens."""

    layer: Layer
    number: int
    output: Tensor


class EmbeddingFinder(CallSubscriber):
    """Finds the calls with the token ids that return a vector for each of them."""

    def __init__(self, ids: Tensor) -> None:
        self._ids = ids
        self.calls: list[EmbeddingCall] = []

    def after_call(self, call: ModuleCall, state: None) -> None:
        """Store the call if it embeds the ids."""
        output = call.output
        if call.failed or not isinstance(output, Tensor) or not output.is_floating_point():
            return
        if output.ndim != 3 or output.shape[:2] != self._ids.shape:
            return
        arguments = (tensor for _, tensor in walk((call.args, call.kwargs)))
        if any(_is_same(tensor, self._ids) for tensor in arguments):
            self.calls.append(EmbeddingCall(call.layer, call.number, output.detach().clone()))


def _is_same(tensor: Tensor, ids: Tensor) -> bool:
    return not tensor.is_floating_point() and tensor.shape == ids.shape and tensor.equal(ids)


class EmbeddingReplacement(CallSubscriber):
    """Replaces the output of the embedding."""

    def __init__(self, number: int, values: Tensor) -> None:
        self._number, self._values = number, values

    def after_call(self, call: ModuleCall, state: None) -> None:
        """Replace the output."""
        if call.number == self._number and not call.failed:
            call.output = self._values


class OutputKeeper(CallSubscriber):
    """Keeps the first tensor that a layer returned last, with its graph."""

    def __init__(self) -> None:
        self.tensor: Tensor | None = None

    def after_call(self, call: ModuleCall, state: None) -> None:
        """Keep the tensor."""
        tensors = (tensor for _, tensor in walk(call.output))
        self.tensor = next((t for t in tensors if t.ndim == 3), None)


class TokenEmbeddings:
    """A model whose token embeddings can be replaced."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.prompt, ids = _find_ids(prepared)
        real = torch.ones(ids.shape, dtype=torch.bool)
        for row, padding in enumerate(self.prompt.padding):
            real[row, list(padding)] = False
        empty = (~real.any(1)).nonzero().flatten().tolist()
        if empty:
            raise InputError(f"Text {empty[0]} is only padding.", "Give a text with tokens.")
        finder = EmbeddingFinder(ids)
        layers = layers_of(prepared.module)
        registry = CallRegistry(prepared.module)
        with _run_guard(prepared), registry.subscribed(finder, layers):
            self.output = detach_clone(forward(prepared))
        call = _choose(prepared, finder.calls)
        self.layer, self._number, self.values = call.layer, call.number, call.output
        self.real = real.to(self.values.device)

    def run(self, values: Tensor) -> Any:
        """Return the model's output with other embeddings, from a run without autograd."""
        module = self.prepared.module
        replacement = EmbeddingReplacement(self._number, values)
        with (
            _run_guard(self.prepared),
            CallRegistry(module).subscribed(replacement, [self.layer]),
        ):
            return detach_clone(forward(self.prepared))

    def gradient(
        self, score: Callable[[Any], Tensor], values: Tensor, after: Layer | None = None
    ) -> Tensor | None:
        """Return the gradient of a score summed over the batch."""
        leaf = values.detach().clone().requires_grad_()
        module = self.prepared.module
        with differentiable(self.prepared):
            # A copy, because the model may change the output of the embedding in place.
            replacement = EmbeddingReplacement(self._number, leaf.clone())
            keeper, registry = OutputKeeper(), CallRegistry(module)
            with (
                registry.subscribed(replacement, [self.layer]),
                registry.subscribed(keeper, [] if after is None else [after]),
            ):
                total = score(forward(self.prepared)).sum()
            at = leaf if after is None else keeper.tensor
            if at is None or not (total.requires_grad and at.requires_grad):
                return None
            [gradient] = torch.autograd.grad(total, [at], allow_unused=True)
        return gradient

    def embedding_of(self, token: int) -> Tensor:
        """Return the embedding of a token at every position: (N, L, width)."""
        ids = torch.full(self.values.shape[:2], token, device=self.values.device)
        with _run_guard(self.prepared):
            try:
                value = self.layer.module(ids)
            except (IndexError, RuntimeError, TypeError) as error:
                raise RequestError(
                    f"{self.layer.title} has no embedding of the token {token}.",
                    "Give another --baseline.",
                ) from error
        return detach_clone(value)  # type: ignore[no-any-return]

    def mean_embedding(self) -> Tensor:
        """Return the mean of the embeddings of all tokens at every position: (N, L, width)."""
        count = getattr(self.layer.module, "num_embeddings", None)
        if not isinstance(count, int):
            raise RequestError(
                f"It is not known how many tokens {self.layer.title} embeds, so their mean is not"
                " known.",
                "Give a token as --baseline.",
            )
        total = torch.zeros(self.values.shape[-1], dtype=torch.float64)
        with _run_guard(self.prepared):
            for ids in torch.arange(count, device=self.values.device).split(_AT_ONCE):
                total += self.layer.module(ids[None]).detach().cpu().double().sum((0, 1))
        return (total / count).to(self.values).expand_as(self.values)


@contextmanager
def _run_guard(prepared: Prepared) -> Iterator[None]:
    """Run the block without autograd, and restore the state of the model after it."""
    # The fast path of transformers skips layers.
    with prepared.preserved(), disable_mha_fast_path(), grad_mode(False):
        yield


def _find_ids(prepared: Prepared) -> tuple[PromptTokens, Tensor]:
    """The tokens that are explained, those of an encoder if there is one, and their ids."""
    tensors = [tensor for _, tensor in walk(as_call(prepared.value))]
    integers = [t for t in tensors if t.dtype in (torch.int64, torch.int32) and t.ndim == 2]
    for prompt in prompt_tokens(prepared.loaded, prepared.value):
        for tensor in integers:
            if tensor.tolist() == [list(row) for row in prompt.ids]:
                return prompt, tensor
    if integers and integers[0].numel():
        ids = integers[0]
        rows = tuple(map(tuple, ids.tolist()))
        return PromptTokens("0", rows, None, ((),) * len(rows)), ids
    shapes = " and ".join(shape_text(tensor.shape) for tensor in tensors)
    images = any(t.ndim == 4 and t.is_floating_point() for t in tensors)
    raise InputError(
        f"The input of {prepared.loaded.spec} has no token ids (N, L): it is"
        f" {shapes or 'no tensor'}.",
        "For images, hookscope cam has the methods integrated, gradxinput, occlusion and rollout."
        if images
        else 'Give a text, --input "text:WORDS", or a tensor of ids (int64).',
    )


def _choose(prepared: Prepared, calls: list[EmbeddingCall]) -> EmbeddingCall:
    """The call of the module that the model names as its embedding, else the first one."""
    if not calls:
        raise RequestError(
            f"No module of {prepared.loaded.spec} turns the token ids into one vector each, and"
            " integers have no gradient.",
            "The model needs an embedding that is called with the ids, such as nn.Embedding.",
        )
    getter = getattr(prepared.module, "get_input_embeddings", None)
    named = None
    if callable(getter):
        try:
            named = getter()
        except (NotImplementedError, AttributeError):
            named = None
    return next((call for call in calls if call.layer.module is named), calls[0])
