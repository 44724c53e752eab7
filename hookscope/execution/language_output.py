"""What a language model predicts: the next tokens after a text, and the tokens it generates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hookscope.errors import RequestError
from hookscope.execution.loss import find_logits
from hookscope.execution.prepare import Prepared
from hookscope.execution.prompt_tokens import prompt_tokens
from hookscope.execution.target import find_class
from hookscope.hooks.capture import Capture
from hookscope.results.lens import Token
from hookscope.results.metadata import ExpertCounts, GeneratedText, TokenProbability
from hookscope.results.tokens import PromptTokens
from hookscope.sources.loaded import Vocabulary
from hookscope.specs.tensor_key import OUTPUT
from hookscope.tensors.nested import walk

TOP = 5


def describe_language_output(prepared: Prepared, output: Any) -> dict[str, Any]:
    """Return the metadata of a language model: ``next_tokens`` of a run, or ``generated``."""
    if prepared.generate is None:
        found: dict[str, Any] = {"next_tokens": next_tokens(prepared, output)}
    else:
        found = {"generated": generated_texts(prepared, output)}
    return {name: rows for name, rows in found.items() if any(rows)}


def next_tokens(prepared: Prepared, output: Any) -> list[list[TokenProbability]]:
    """Return the five most probable next tokens after the last real position of each row.

    Empty if the output has no logits (N, L, V) over the vocabulary, and for masked models.
    """
    logits = head_logits(output)
    prompt = _predicted_prompt(prepared, logits)
    if logits is None or prompt is None:
        return []
    return [_row(prepared, prompt, logits, row) for row in range(len(prompt.ids))]


def last_logits(prepared: Prepared, output: Any) -> Tensor | None:
    """Return the logits after the last real position of each row, (N, V).

    None if ``next_tokens`` would be empty, or a row is only padding.
    """
    logits = head_logits(output)
    prompt = _predicted_prompt(prepared, logits)
    if logits is None or prompt is None:
        return None
    real = [prompt.real(row) for row in range(len(prompt.ids))]
    if not all(real):
        return None
    return torch.stack([logits[row, places[-1]] for row, places in enumerate(real)])


def _predicted_prompt(prepared: Prepared, logits: Tensor | None) -> PromptTokens | None:
    """The tokens that logits predict the next ones of; None if they are not of a vocabulary."""
    if logits is None or logits.ndim != 3 or fills_masks(prepared.module):
        return None
    # The tokens of a decoder are the last.
    prompts = reversed(prompt_tokens(prepared.loaded, prepared.value))
    prompt = next((p for p in prompts if (len(p.ids), p.length) == logits.shape[:2]), None)
    return prompt if prompt and is_over_vocabulary(prepared, logits.shape[2]) else None


def head_logits(output: Any) -> Tensor | None:
    """Return the floating-point logits of an output; None for the hidden states of a base model."""
    key, tensor = find_logits(output)
    is_hidden = not key and any("last_hidden_state" in path for path, _ in walk(output))
    return tensor if tensor is not None and tensor.is_floating_point() and not is_hidden else None


def is_over_vocabulary(prepared: Prepared, size: int) -> bool:
    """Whether scores of ``size`` classes are of the vocabulary, whose last ids may be unused."""
    if not _scores_tokens(prepared.module):
        return False
    vocabulary = _vocabulary(prepared)
    config: Any = getattr(prepared.loaded.module, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    known = getattr(text, "vocab_size", None)
    return size == known or (vocabulary is not None and size >= vocabulary.size)


def _scores_tokens(module: Any) -> bool:
    """Whether a model may score tokens: one of transformers does so with a head over them."""
    can_generate = getattr(module, "can_generate", None)
    head = getattr(module, "get_output_embeddings", None)
    if not callable(can_generate) or not callable(head):
        return True
    return bool(can_generate()) or head() is not None


def fills_masks(module: nn.Module) -> bool:
    """Whether a model predicts the tokens that are masked, and not the next one."""
    return any(kind in type(module).__name__ for kind in ("MaskedLM", "ForPreTraining"))


def _vocabulary(prepared: Prepared) -> Vocabulary | None:
    return prepared.loaded.own_text.vocabulary if prepared.loaded.own_text is not None else None


def _row(
    prepared: Prepared, prompt: PromptTokens, logits: Tensor, row: int
) -> list[TokenProbability]:
    real = prompt.real(row)
    if not real:
        return []
    scores = logits[row, real[-1]].detach().double()
    shares = scores.softmax(0)
    best = shares.topk(min(TOP, len(shares)))
    vocabulary = _vocabulary(prepared)
    return [
        {
            "id": token,
            "token": None if vocabulary is None else vocabulary.text(token),
            "probability": round(share, 6),
            "logit": round(scores[token].item(), 6),
        }
        for share, token in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]


def generated_texts(prepared: Prepared, output: Any) -> list[GeneratedText]:
    """Return what a model generated in each row: the new ids, their texts, and the whole text.

    Empty if the output is not token ids (N, L).
    """
    tensors = {path[-1] if path else "": tensor for path, tensor in walk(output)}
    ids = tensors.get("sequences", tensors.get(""))
    if ids is None or ids.ndim != 2 or ids.is_floating_point() or ids.dtype is torch.bool:
        return []
    prompts = prompt_tokens(prepared.loaded, prepared.value)
    if not prompts or len(prompts[-1].ids) != len(ids):
        return []
    vocabulary, prompt = _vocabulary(prepared), prompts[-1]
    ends = _end_tokens(prepared)
    return [
        _generated(vocabulary, list(start), row, ends)
        for start, row in zip(prompt.ids, ids.tolist(), strict=True)
    ]


def _end_tokens(prepared: Prepared) -> set[int]:
    """The ids after which the model generates no more."""
    ends = getattr(getattr(prepared.module, "generation_config", None), "eos_token_id", None)
    return {ends} if isinstance(ends, int) else set(ends or ())


def _generated(
    vocabulary: Vocabulary | None, start: list[int], row: list[int], ends: set[int]
) -> GeneratedText:
    new = row[len(start) :] if row[: len(start)] == start else row
    if vocabulary is None:
        return {
            "ids": new,
            "tokens": None,
            "text": None,
            "ended": bool(ends.intersection(new[-1:])),
        }
    # A padding token is also the end of a text in some vocabularies: the first one belongs to it.
    fill = {vocabulary.padding, *vocabulary.special, *ends}
    while len(new) > 1 and new[-1] == vocabulary.padding and new[-2] in fill:
        new = new[:-1]
    before, plain = (
        vocabulary.decode([token for token in tokens if token not in vocabulary.special])
        for tokens in (start, start + new)
    )
    # The tokens alone may be decoded without the space before the first word.
    joined = plain.startswith(before) and len(new) < len(row)
    text = (
        plain[len(before) :]
        if joined
        else vocabulary.decode([token for token in new if token not in vocabulary.special])
    )
    tokens = list(vocabulary.texts(new))
    return {"ids": new, "tokens": tokens, "text": text, "ended": bool(ends.intersection(new[-1:]))}


def count_expert_tokens(capture: Capture, model: nn.Module) -> list[ExpertCounts]:
    """Return the tokens of each expert for every recorded call of a router, in execution order.

    A router has ``num_experts`` and returns the indices of chosen experts, (tokens, ``top_k``).
    """
    modules = dict(model.named_modules())
    counts: list[ExpertCounts] = []
    for record in capture.records:
        router = modules.get("" if record.module == "." else record.module)
        experts = getattr(router, "num_experts", None)
        chosen = getattr(router, "top_k", None)
        if record.kind != OUTPUT or not isinstance(experts, int):
            continue
        indices = capture[record.key]
        integers = not (indices.is_floating_point() or indices.is_complex())
        if integers and indices.ndim and indices.shape[-1] == chosen:
            tokens = torch.bincount(indices.flatten().cpu(), minlength=experts).tolist()
            counts.append({"key": record.key, "tokens": tokens})
    return counts


_ARGMAX = "argmax"


class OutputNames:
    """The names of what a model predicts: tokens of its vocabulary, or its classes."""

    def __init__(self, prepared: Prepared, count: int) -> None:
        loaded = prepared.loaded
        self._classes = loaded.categories if len(loaded.categories) == count else ()
        recipe = loaded.own_text
        is_text = not self._classes and is_over_vocabulary(prepared, count)
        self._vocabulary = recipe.vocabulary if recipe and is_text else None
        self._lacking = "scores of other things than tokens" if recipe else "no tokenizer"
        self._count = count
        self._known: dict[int, Token] = {}

    def __getitem__(self, index: int) -> Token:
        token = self._known.get(index)
        if token is None:
            text = str(index)
            if self._classes:
                text = self._classes[index]
            elif self._vocabulary is not None:
                text = self._vocabulary.text(index)
            token = self._known[index] = Token(index, text)
        return token

    def target(self, target: str | int) -> int | None:
        """Return the id of a target; None for ``argmax``."""
        if target == _ARGMAX:
            return None
        text = str(target)
        if text.isdecimal():
            if int(text) >= self._count:
                raise RequestError(
                    f"The target {text} is out of range: the model has {self._count} tokens.",
                    f"Give an id from 0 to {self._count - 1}.",
                )
            return int(text)
        if self._classes:
            return find_class(text, self._classes)
        if self._vocabulary is None:
            raise RequestError(
                f"The model has {self._lacking}, so {text!r} has no id.",
                "Give the id of the token or class.",
            )
        return self._vocabulary.token(text)
