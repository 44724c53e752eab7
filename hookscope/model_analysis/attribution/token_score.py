"""The score that is attributed to tokens: the logit of a next token, or of a class."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hookscope.errors import RequestError
from hookscope.execution.losses.loss import find_logits
from hookscope.execution.prepare import Prepared
from hookscope.execution.prompt_tokens import prompt_tokens
from hookscope.model_analysis.output_names import OutputNames
from hookscope.results.lens import Token
from hookscope.results.tokens import PromptTokens
from hookscope.specs.attribution_options import AttributeOptions


class TokenScore:
    """The logit of the target for each text; less that of another token, if one is named."""

    def __init__(
        self, prepared: Prepared, prompt: PromptTokens, output: Any, options: AttributeOptions
    ) -> None:
        logits = _logits_of(prepared, output)
        self.positions = _positions(prepared, prompt, logits, options.position)
        names = OutputNames(prepared, logits.shape[-1])
        self._prepared = prepared
        rows = self._rows(logits)
        index = names.target(options.target)
        chosen = rows.argmax(-1) if index is None else torch.full_like(rows[:, 0], index).long()
        self._ids = chosen
        self.targets = tuple(names[number] for number in chosen.tolist())
        self._other = None if options.against is None else names.target(options.against)
        self.against: Token | None = None if self._other is None else names[self._other]

    def of(self, output: Any) -> Tensor:
        """Return the score of each row, (N,), in float32 or wider, with its graph."""
        rows = self._rows(_logits_of(self._prepared, output))
        score = rows.gather(1, self._ids.unsqueeze(1))[:, 0]
        return score if self._other is None else score - rows[:, self._other]

    def _rows(self, logits: Tensor) -> Tensor:
        """The logits at the positions: (N, token or class)."""
        if self.positions is not None:
            logits = logits[torch.arange(len(logits)), list(self.positions)]
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _logits_of(prepared: Prepared, output: Any) -> Tensor:
    logits = find_logits(output)[1]
    if logits is None or not logits.is_floating_point() or logits.ndim not in (2, 3):
        raise RequestError(
            f"{prepared.loaded.spec} returns no logits (N, L, token) or (N, class).",
            "Choose a model with a head, such as ...ForCausalLM or ...ForSequenceClassification.",
        )
    return logits


def _positions(
    prepared: Prepared, prompt: PromptTokens, logits: Tensor, position: int | None
) -> tuple[int, ...] | None:
    """The position of each row whose logits are explained."""
    spec = prepared.loaded.spec
    if logits.ndim == 2:
        if position is not None:
            raise RequestError(
                f"{spec} returns one score for each class, not one for each position.",
                "Leave out --position.",
            )
        if len(logits) != len(prompt.ids):
            raise RequestError(
                f"{spec} returns {len(logits)} rows of scores for {len(prompt.ids)} texts.",
                "Choose a model that returns one for each text.",
            )
        return None
    if position is None and "MaskedLM" in type(prepared.module).__name__:
        raise RequestError(
            f"{spec} predicts the tokens that are masked, not the next one.",
            "Give the position of a token with --position.",
        )
    # The logits of a decoder are at its own tokens.
    prompts = [*reversed(prompt_tokens(prepared.loaded, prepared.value)), prompt]
    own = next((p for p in prompts if (len(p.ids), p.length) == tuple(logits.shape[:2])), None)
    if own is None and len(logits) != len(prompt.ids):
        raise RequestError(
            f"{spec} returns {len(logits)} rows of logits for {len(prompt.ids)} texts.",
            "Choose a model that returns one for each text.",
        )
    every = range(logits.shape[1])
    rows = [own.real(row) if own else tuple(every) for row in range(len(logits))]
    index = -1 if position is None else position
    for row, real in enumerate(rows):
        if not -len(real) <= index < len(real):
            raise RequestError(
                f"There is no position {index}: text {row} has {len(real)} tokens.",
                f"Give one from 0 to {len(real) - 1}, or a negative one from the end.",
            )
    return tuple(real[index] for real in rows)
