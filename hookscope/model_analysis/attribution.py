"""One run of ``attribute``: the scores of the tokens by a method, and how they add up."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hookscope.errors import RequestError
from hookscope.execution.language_output import OutputNames, fills_masks, head_logits
from hookscope.execution.prepare import Prepared
from hookscope.execution.prompt_tokens import prompt_tokens
from hookscope.files.progress_types import Progress
from hookscope.hooks.layers import Layer
from hookscope.model_analysis.cams.input_methods import integrate_gradient, occlusion_drops
from hookscope.model_analysis.rolled_attention import read_tokens, record_attention, roll_out
from hookscope.model_analysis.token_embeddings import TokenEmbeddings
from hookscope.results.attribution import (
    Attribution,
    AttributionRow,
    TokenAttribution,
)
from hookscope.results.lens import Token
from hookscope.results.tokens import PromptTokens
from hookscope.specs.attribution_options import (
    GRADIENT,
    INTEGRATED,
    MEAN,
    METHODS,
    OCCLUSION,
    ROLLOUT,
    STEPS,
    ZERO,
    AttributeOptions,
)

_MEAN_NOTE = (
    "The baseline is the mean embedding, because attributions from an embedding of zeros do not add"
    " up."
)


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
    logits = head_logits(output)
    if logits is None or logits.ndim not in (2, 3):
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
    if position is None and fills_masks(prepared.module):
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


@dataclass(frozen=True)
class AttributionInput:
    """What a method computes the attributions from."""

    tokens: TokenEmbeddings
    score: TokenScore
    baseline: Tensor
    steps: int
    progress: Progress | None

    def scores_at(self, values: Tensor) -> Tensor:
        """Return the score of each row with other embeddings, (N,)."""
        return self.score.of(self.tokens.run(values))

    def gradient_at(self, values: Tensor, after: Layer | None = None) -> Tensor:
        """Return the gradient of the scores at the embeddings, or at the output of a layer."""
        gradient = self.tokens.gradient(self.score.of, values, after)
        if gradient is None:
            where = (after or self.tokens.layer).title
            raise RequestError(
                f"The score has no gradient at the output of {where}: something in the model stops"
                " gradients, such as torch.no_grad, detach or rounding.",
                f"Use --by {OCCLUSION}, which needs no gradient.",
            )
        return gradient


def gradient_times_input(inputs: AttributionInput) -> Tensor:
    """Return sum_k x_pk g_pk, (N, L); see ``METHODS``."""
    values = inputs.tokens.values
    gradient = inputs.gradient_at(values)
    return (values.cpu().double() * gradient.cpu().double()).sum(-1)


def integrated_gradients(inputs: AttributionInput) -> Tensor:
    """Return the integrated gradients summed over the width, (N, L); see ``METHODS``."""
    values = inputs.tokens.values
    return integrate_gradient(
        inputs.gradient_at, inputs.baseline, values, inputs.steps, inputs.progress
    ).sum(-1)


def token_occlusion(inputs: AttributionInput) -> Tensor:
    """Return the change of the score without each token, (N, L), from one run a position."""
    values, every = inputs.tokens.values, slice(None)
    regions = [(every, position) for position in range(values.shape[1])]
    drops = occlusion_drops(inputs.scores_at, values, inputs.baseline, regions, inputs.progress)
    return torch.stack(list(drops), 1)


def token_rollout(inputs: AttributionInput) -> Tensor:
    """Return the mean rollout row of the tokens that the score depends on, (N, L)."""
    tokens, prepared = inputs.tokens, inputs.tokens.prepared
    hint = f"Use --by {INTEGRATED}, which needs no attention weights."
    if getattr(getattr(prepared.module, "config", None), "is_encoder_decoder", False):
        raise RequestError(
            f"{prepared.loaded.spec} has an encoder and a decoder. Rollout needs one chain.",
            hint,
        )
    batch, length = tokens.values.shape[:2]
    attention = record_attention(prepared, batch, "text", hint)
    if attention.weights[0].shape[1] != length:
        raise RequestError(
            f"Layer {attention.layers[0]} attends over {attention.weights[0].shape[1]} tokens, and"
            f" the input has {length}.",
            hint,
        )
    real = tokens.real.cpu()
    pairs = real[:, :, None] & real[:, None, :]  # the rows of padding may be NaN
    rollout = roll_out([weights.where(pairs, 0) for weights in attention.weights])
    gradient = inputs.gradient_at(tokens.values, attention.last)
    read = read_tokens(gradient, 0, (batch, length)) & real
    return rollout.masked_fill(~read[:, :, None], 0).sum(1) / read.sum(1, keepdim=True)


FUNCTIONS: Mapping[str, Callable[[AttributionInput], Tensor]] = {
    INTEGRATED: integrated_gradients,
    GRADIENT: gradient_times_input,
    OCCLUSION: token_occlusion,
    ROLLOUT: token_rollout,
}


def run_attribution(
    prepared: Prepared,
    options: AttributeOptions,
    metadata: dict[str, Any],
    progress: Progress | None = None,
) -> Attribution:
    """Run the model as often as the method needs, and return the attributions."""
    tokens = TokenEmbeddings(prepared)
    score = TokenScore(prepared, tokens.prompt, tokens.output, options)
    result = _attribute(tokens, score, options, metadata, progress)
    # Near an embedding of zeros a norm makes the score change abruptly.
    if (
        options.by == INTEGRATED
        and options.baseline is None
        and not all(row.adds_up for row in result.rows)
    ):
        with suppress(RequestError):
            other = _attribute(tokens, score, replace(options, baseline=MEAN), metadata, progress)
            if sum(row.adds_up for row in other.rows) > sum(row.adds_up for row in result.rows):
                return replace(other, notes=(_MEAN_NOTE, *other.notes))
    return result


def _attribute(
    tokens: TokenEmbeddings,
    score: TokenScore,
    options: AttributeOptions,
    metadata: dict[str, Any],
    progress: Progress | None,
) -> Attribution:
    baseline, name = _baseline_of(tokens, options.baseline)
    steps = options.steps or STEPS
    inputs = AttributionInput(tokens, score, baseline, steps, progress)
    values = FUNCTIONS[options.by](inputs).masked_fill(~tokens.real.cpu(), 0)
    after = score.of(tokens.output).tolist()
    before = None if options.by == ROLLOUT else inputs.scores_at(baseline).tolist()
    rows = tuple(
        AttributionRow(
            tuple(
                TokenAttribution(
                    position,
                    Token(tokens.prompt.ids[row][position], tokens.prompt.label(row, position)),
                    float(values[row, position]),
                )
                for position in tokens.prompt.real(row)
            ),
            score.targets[row],
            None if score.positions is None else score.positions[row],
            after[row],
            None if before is None else before[row],
        )
        for row in range(len(after))
    )
    method = METHODS[options.by]
    return Attribution(
        method=method.name,
        formula=method.formula,
        paper=method.paper,
        layer=tokens.layer.name,
        baseline=name,
        against=score.against,
        steps=steps if options.by == INTEGRATED else None,
        rows=rows,
        notes=_notes(rows, options.by, steps),
        metadata=metadata,
    )


def _baseline_of(tokens: TokenEmbeddings, baseline: str | int | None) -> tuple[Tensor, str]:
    """The baseline's embeddings, and its name. Padding keeps its own, so it contributes nothing."""
    if baseline is None or baseline == ZERO:
        value, name = torch.zeros_like(tokens.values), ZERO
    elif baseline == MEAN:
        value, name = tokens.mean_embedding(), MEAN
    else:
        recipe = tokens.prepared.loaded.own_text
        vocabulary = recipe.vocabulary if recipe else None
        if str(baseline).isdecimal():
            token = int(baseline)
        elif vocabulary is None:
            raise RequestError(
                f"The model has no tokenizer, so {baseline!r} has no id.",
                "Give the id of the token.",
            )
        else:
            token = vocabulary.token(str(baseline))
        text = str(token) if vocabulary is None else repr(vocabulary.text(token))
        value, name = tokens.embedding_of(token), f"token {text}"
    return torch.where(tokens.real[:, :, None], value, tokens.values), name


def _notes(rows: tuple[AttributionRow, ...], by: str, steps: int) -> tuple[str, ...]:
    """Whether the attributions are finite and, of integrated gradients, add up."""
    notes = []
    for number, row in enumerate(rows):
        text = f" of text {number}" if len(rows) > 1 else ""
        if not math.isfinite(row.total):
            notes.append(
                f"The attributions{text} contain NaN or Inf. hookscope check names the layer."
            )
        elif by == INTEGRATED and row.difference is not None and not row.adds_up:
            notes.append(
                f"The attributions{text} add up to {row.total:.4g}, and the scores differ by"
                f" {row.difference:.4g}: the integral is not exact. Use more --steps than {steps},"
                " or a token as --baseline."
            )
    return tuple(notes)
