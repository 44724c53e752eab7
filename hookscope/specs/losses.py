"""The table of losses with their formulas. Torch-free, so that help can show it.

In the formulas ``x`` is the model's output, ``t`` the target, ``c`` runs over the classes and ``y``
is the target's class. ``reduction`` says how the terms become one number.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from hookscope.errors import LossError
from hookscope.files.suggestions import did_you_mean

TARGETS = "a class index, a list such as 3,7, a label's name, argmax, uniform, or a tensor file"
TARGET_SUFFIXES = (".npy", ".safetensors", ".pt", ".pth")
REDUCTIONS = ("mean", "sum", "batchmean")


class LossFormula(NamedTuple):
    """A loss that can be given by name."""

    name: str
    formula: str
    raw_formula: str
    reduction: str
    raw_reduction: str
    needs_target: bool
    summary: str


def _same(name: str, formula: str, reduction: str, needs_target: bool, summary: str) -> LossFormula:
    return LossFormula(name, formula, formula, reduction, reduction, needs_target, summary)


FORMULAS: dict[str, LossFormula] = {
    entry.name: entry
    for entry in (
        LossFormula(
            "kl",
            "KL(t || softmax(x)) = sum_c t_c (log t_c - log softmax(x)_c)",
            "sum_c t_c (log t_c - x_c)",
            "batchmean",
            "mean",
            True,
            "divergence of the target distribution from the softmax of the output",
        ),
        _same("ce", "-sum_c t_c log softmax(x)_c", "mean", True, "cross-entropy with softmax"),
        _same(
            "nll", "-x_y", "mean", True, "negative log-likelihood; the output is log-probabilities"
        ),
        _same("mse", "(x - t)^2", "mean", True, "squared error"),
        _same("l1", "|x - t|", "mean", True, "absolute error"),
        _same(
            "smooth_l1",
            "0.5 (x - t)^2 if |x - t| < 1, else |x - t| - 0.5",
            "mean",
            True,
            "squared error near zero, absolute error beyond 1",
        ),
        LossFormula(
            "bce",
            "-(t log s + (1 - t) log(1 - s)) with s = sigmoid(x)",
            "-(t log x + (1 - t) log(1 - x))",
            "mean",
            "mean",
            True,
            "binary cross-entropy of each entry, with sigmoid",
        ),
        _same("logit", "x_y", "sum", True, "the class's own score"),
        _same("sum", "sum of all entries of x", "", False, "all entries of all outputs, added up"),
        _same("norm", "sqrt(sum of x^2)", "", False, "Euclidean norm over all outputs"),
    )
}

# Other names of these losses, for suggestions.
LOSS_ALIASES = {
    **dict.fromkeys(("crossentropy", "crossentropyloss", "xent", "celoss"), "ce"),
    **dict.fromkeys(("kldiv", "kldivloss", "kldivergence", "klloss"), "kl"),
    **dict.fromkeys(("nllloss", "negativeloglikelihood"), "nll"),
    **dict.fromkeys(("mseloss", "l2", "l2loss"), "mse"),
    **dict.fromkeys(("l1loss", "mae"), "l1"),
    **dict.fromkeys(("smoothl1", "smoothl1loss", "huber", "huberloss"), "smooth_l1"),
    **dict.fromkeys(("bceloss", "bcewithlogits", "bcewithlogitsloss"), "bce"),
    **dict.fromkeys(("binarycrossentropy", "binarycrossentropywithlogits"), "bce"),
    **dict.fromkeys(("logits", "score", "classscore"), "logit"),
}


def check_loss_name(name: str) -> None:
    """Raise LossError, with near names, unless ``name`` is one of ``FORMULAS``."""
    if name not in FORMULAS:
        listing = f"The losses are {', '.join(FORMULAS)}."
        near = did_you_mean(name, FORMULAS, LOSS_ALIASES)
        raise LossError(f"There is no loss called {name!r}.", f"{near} {listing}".strip())


def check_reduction(formula: LossFormula, reduction: str | None) -> None:
    """Raise LossError if ``reduction`` is unknown, or the loss has nothing to reduce."""
    if reduction is None:
        return
    if reduction not in REDUCTIONS:
        raise LossError(
            f"There is no reduction called {reduction!r}.",
            f"The reductions are {', '.join(REDUCTIONS)}.",
        )
    if not formula.reduction:
        raise LossError(
            f"The loss {formula.name} is one number and takes no reduction.",
            "Leave out --reduction, or choose another --loss.",
        )


def check_custom_loss_options(name: str, reduction: str | None, raw: bool) -> None:
    """Raise LossError if a custom loss is combined with ``reduction`` or ``raw``."""
    for given, option in ((reduction is not None, "--reduction"), (raw, "--raw")):
        if given:
            raise LossError(
                f"{option} is only for the built-in losses, and {name} is a custom function.",
                f"Leave out {option}: the function receives the model's output unchanged, and its"
                " return value is the loss.",
            )


def reject_loss_options(loss: object, target: object, reduction: object, raw: bool) -> None:
    """Raise LossError if an option of the loss is given without a backward pass."""
    is_default = isinstance(target, str) and target == "argmax"
    options = {"loss": loss, "target": not is_default, "reduction": reduction, "raw": raw}
    for name in (name for name, value in options.items() if value not in (None, False)):
        raise LossError(
            f"--{name} is for the backward pass, which --forward-only skips.",
            f"Leave out one of the two, --{name} or --forward-only.",
        )


def is_target_file(target: object) -> bool:
    """Whether a target is the name of a tensor file."""
    return isinstance(target, str) and target.lower().endswith(TARGET_SUFFIXES)


def check_target(target: str) -> None:
    """Raise LossError if ``target`` is a tensor file that is missing."""
    if is_target_file(target) and not os.path.isfile(target):
        raise LossError(f"There is no target file {target!r}.", f"A target is {TARGETS}.")
