"""Losses by name, and functions of the user: one number, which is differentiated."""

from __future__ import annotations

import inspect
import logging
import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hookscope.errors import LossError, LossFailed, ModelError
from hookscope.execution.target import Target, resolve_target, target_for_function
from hookscope.files.signatures import signature_of
from hookscope.files.words import shape_text
from hookscope.sources.user_code import load_functions, run_user_code
from hookscope.specs import losses
from hookscope.specs.model_spec import end_sentence, may_name_function, parse_function
from hookscope.tensors.nested import detach_clone, map_tensors, walk
from hookscope.tensors.tensor_stats import euclidean_norm

log = logging.getLogger("hookscope")

PROJECTION_NAME = "projection"
PROJECTION_FORMULA = (
    "sum of r x over all entries of x, r normal noise of variance 1/n from the seed"
)

_CLASSLESS_TASKS = ("detection", "optical flow")
_LOGITS = ("logits", "out")  # where output classes and dicts keep them
_CLASSLESS = "The losses sum and norm work for any output."
_ONE_CLASS = "Use logit, bce or mse, which depend on a single score."

_ELEMENTWISE: dict[str, Callable[..., Tensor]] = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth_l1": F.smooth_l1_loss,
}


OUTPUT, TARGET, INPUT = "output", "target", "input"
_SIGNATURES = (
    "Write loss(output), loss(output, target), or name the parameters output, input, target."
)


@dataclass(frozen=True)
class Loss:
    """A loss, and how it was computed."""

    value: Tensor
    name: str
    formula: str
    reduction: str
    target: str
    raw: bool = False
    classes: Tensor | None = None


def compute_loss(
    name: str,
    output: Any,
    target: Any = "argmax",
    *,
    reduction: str | None = None,
    raw: bool = False,
    categories: Sequence[str] = (),
) -> Loss:
    """Compute the loss ``name`` from the part of ``output`` that ``find_logits`` returns.

    >>> compute_loss("kl", torch.zeros(1, 10), "3").value  # log of the number of classes
    tensor(2.3026)
    """
    losses.check_loss_name(name)
    formula = losses.FORMULAS[name]
    losses.check_reduction(formula, reduction)
    chosen = reduction or (formula.raw_reduction if raw else formula.reduction)
    text = formula.raw_formula if raw else formula.formula
    if not formula.needs_target:
        if not (isinstance(target, str) and target == "argmax"):
            log.info("target: not used by the loss %s", name)
        flat = flatten_floating(output)
        value = flat.sum() if name == "sum" else euclidean_norm(flat)
        return Loss(value, name, text, chosen, "", raw)
    logits = class_scores(output)
    resolved = resolve_target(target, logits, categories)
    value = _reduce(_loss_terms(name, logits, resolved, raw), chosen, len(logits))
    return Loss(value, name, text, chosen, resolved.text, raw, resolved.classes)


def _reduce(terms: Tensor, reduction: str, batch: int) -> Tensor:
    if reduction == "mean":
        return terms.mean()
    return terms.sum() / batch if reduction == "batchmean" else terms.sum()


def _loss_terms(name: str, logits: Tensor, target: Target, raw: bool) -> Tensor:
    """The terms of the loss before the reduction."""
    if name in ("nll", "logit"):
        scores = _score(logits, target, name)
        return -scores if name == "nll" else scores
    if name in ("kl", "ce"):
        return _distribution_terms(name, logits, target, raw)
    dense = target.dense(logits)
    if name == "bce":
        return _binary_terms(logits, dense, raw)
    return _ELEMENTWISE[name](logits, dense, reduction="none")


def _score(logits: Tensor, target: Target, name: str) -> Tensor:
    if target.classes is None:
        raise LossError(
            f"The loss {name} needs a class as target, not {target.text}.",
            "Give the index or the label of a class.",
        )
    return logits.gather(1, target.classes.unsqueeze(1)).squeeze(1)


def _distribution_terms(name: str, logits: Tensor, target: Target, raw: bool) -> Tensor:
    if logits.shape[1] == 1 and not (name == "kl" and raw):
        raise LossError(
            f"The output has one class, so its softmax is 1 and the gradient of {name} is zero.",
            _ONE_CLASS,
        )
    dense = target.dense(logits)
    _check_distribution(dense, name)
    if name == "ce":
        return -(dense * logits.log_softmax(1)).sum(1)
    return F.kl_div(logits if raw else logits.log_softmax(1), dense, reduction="none")


def _binary_terms(logits: Tensor, dense: Tensor, raw: bool) -> Tensor:
    if not raw:
        return F.binary_cross_entropy_with_logits(logits, dense, reduction="none")
    low, high = (float(bound) for bound in logits.detach().aminmax())
    if low < 0 or high > 1:
        raise LossError(
            f"bce with --raw needs probabilities; the output ranges from {low:.4g} to {high:.4g}.",
            "Leave out --raw to apply a sigmoid.",
        )
    return F.binary_cross_entropy(logits, dense, reduction="none")


def _check_distribution(dense: Tensor, name: str) -> None:
    total = dense.sum(1)
    if bool((dense < 0).any()) or not torch.allclose(total, torch.ones_like(total), atol=1e-3):
        low = float(dense.min())
        fault = f"contains {low:.4g}" if low < 0 else f"sums to {float(total.flatten()[0]):.4g}"
        raise LossError(
            f"The loss {name} needs a distribution over the classes, but the target {fault}.",
            "Each row of the target must sum to 1, without negative values.",
        )


def class_scores(output: Any) -> Tensor:
    """Return the output's scores in float32 or wider: batch, class, and any more dimensions."""
    key, tensor = find_logits(output)
    if tensor is None:
        what = type(output).__name__
        raise LossError(f"The output ({what}) contains no tensor of class scores.", _CLASSLESS)
    if not tensor.is_floating_point():
        raise LossError(f"The output is of type {tensor.dtype} and has no gradient.", _CLASSLESS)
    if not tensor.ndim or not tensor.numel():
        shape = shape_text(tensor.shape, "no dimensions")
        raise LossError(f"The output ({shape}) has no classes.", _CLASSLESS)
    if tensor.ndim == 1:
        tensor = tensor.unsqueeze(0)
    if tensor.ndim == 3 and key == "logits":
        tensor = tensor.transpose(1, 2)
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def has_classes(output: Any, task: str = "") -> bool:
    """Return whether an output has class scores, judged by its structure and the task."""
    structure = isinstance(output, list | tuple) and not hasattr(output, "logits")
    tokens = isinstance(output, Tensor) and output.ndim == 3
    if structure or tokens or task in _CLASSLESS_TASKS:
        return False
    try:
        compute_loss("ce", output)
    except LossError:
        return False
    return True


def is_single_score(output: Any) -> bool:
    """Return whether an output is one number, or has one class, whose softmax is 1."""
    _, tensor = find_logits(output)
    if tensor is None or not tensor.is_floating_point() or not tensor.numel():
        return False
    return not tensor.ndim or class_scores(output).shape[1] == 1


def find_logits(output: Any) -> tuple[str, Tensor | None]:
    """Return the logits of an output, and the name that it has for them; empty without a name."""
    if isinstance(output, Tensor):
        return "", output
    for key in _LOGITS:
        tensor = output.get(key) if isinstance(output, Mapping) else getattr(output, key, None)
        if isinstance(tensor, Tensor):
            return key, tensor
    if isinstance(output, list):
        return "", None  # a detector's boxes image by image, optical flow step by step
    return "", next(_floating(output), None)


def _floating(output: Any) -> Iterator[Tensor]:
    return (tensor for _, tensor in walk(output) if tensor.is_floating_point())


def flatten_floating(output: Any) -> Tensor:
    """Return the entries of all floating-point tensors as a vector, in float32 or wider."""
    flat = [t.flatten().to(torch.promote_types(t.dtype, torch.float32)) for t in _floating(output)]
    if not flat:
        raise LossError(
            "The output contains no floating-point tensor.", "Nothing in it has a gradient."
        )
    return torch.cat(flat)


def projection_loss(output: Any, seed: int) -> Loss:
    """Return the sum of all entries of ``output``, each times a random number of variance 1/n.

    The gradient has about norm 1. Others may vanish: the norm of a normalised output is constant,
    and a cross-entropy with the predicted class has a small gradient if that is certain.
    """
    flat = flatten_floating(output)
    if not flat.numel():
        raise LossError("The output is empty.", "Nothing in it has a gradient.")
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(flat.numel(), generator=generator, dtype=torch.float64)
    noise = (noise / math.sqrt(flat.numel())).to(flat)
    return Loss((flat * noise).sum(), PROJECTION_NAME, PROJECTION_FORMULA, "", "")


@dataclass(frozen=True)
class CustomLoss:
    """A loss that is a function."""

    function: Callable[..., Any]
    name: str
    path: str
    where: str
    takes: tuple[str, ...]
    by_name: tuple[tuple[str, str], ...] = ()

    def compute(self, output: Any, target: Any, input: Any, categories: Sequence[str] = ()) -> Loss:
        """Call the function, and return its result as a loss."""
        resolved, text = target_for_function(target, categories)
        device = next((tensor.device for _, tensor in walk(output)), None)
        values = {
            OUTPUT: output,
            TARGET: map_tensors(resolved, lambda path, tensor: tensor.to(device)),
            INPUT: detach_clone(input),
        }
        args = [values[name] for name in self.takes]
        kwargs = {parameter: values[name] for parameter, name in self.by_name}
        value = self._check_number(self._call(partial(self.function, *args, **kwargs)), output)
        return Loss(value, self.name, f"as written in {self.where}", "", text)

    def _call(self, call: Callable[[], Any]) -> Any:
        try:
            return run_user_code(self.path, call) if self.path else call()
        except ModelError as error:
            raise LossFailed(f"The loss {self.name} failed: {error.message}", error.hint) from error
        except Exception as error:
            line = traceback.extract_tb(error.__traceback__)[-1]
            description = f"{type(error).__name__}: {error}".rstrip(": ")
            raise LossFailed(
                f"The loss {self.name} failed: {line.filename}, line {line.lineno}, raised"
                f" {end_sentence(description)}",
                "HOOKSCOPE_DEBUG=1 shows the whole traceback.",
            ) from error

    def _check_number(self, value: Any, output: Any) -> Tensor:
        wanted = "A loss is a tensor of one floating-point number: end it with .sum() or .mean()."
        if not isinstance(value, Tensor):
            kind = _with_article(type(value).__name__)
            raise LossError(f"{self.where}: the loss returned {kind}.", wanted)
        if value.numel() != 1 or not value.is_floating_point():
            shape = shape_text(value.shape, "no dimensions")
            kind = str(value.dtype).removeprefix("torch.")
            raise LossError(f"{self.where}: the loss returned {shape} of {kind}.", wanted)
        if not value.requires_grad and any(t.requires_grad for _, t in walk(output)):
            raise LossError(
                f"{self.where}: the loss does not depend on the model's output.",
                "Compute it from the output without detach(), item(), numpy() or no_grad().",
            )
        return value.reshape(())


def resolve_custom_loss(loss: object, reduction: str | None, raw: bool) -> CustomLoss | None:
    """Return the custom loss that ``loss`` names or is; None if it is the name of a formula."""
    if callable(loss):
        name = getattr(loss, "__name__", type(loss).__name__)
        losses.check_custom_loss_options(name, reduction, raw)
        return _inspect_function(loss, name, "")
    if not isinstance(loss, str) or not may_name_function(loss):
        return None
    reference = parse_function(loss)
    losses.check_custom_loss_options(loss, reduction, raw)
    [function] = load_functions([reference])
    return _inspect_function(function, loss, reference.home if reference.in_file else "")


def _inspect_function(function: Callable[..., Any], name: str, path: str) -> CustomLoss:
    target_function = function.forward if isinstance(function, nn.Module) else function
    code = getattr(inspect.unwrap(target_function), "__code__", None)
    where = f"{path or code.co_filename}, line {code.co_firstlineno}" if code else path or name
    try:
        parameters = list(signature_of(target_function).parameters.values())
    except (TypeError, ValueError):  # written in C
        return CustomLoss(function, name, path, where, (OUTPUT, TARGET))
    # PyTorch's own losses call the model's output "input".
    home = getattr(function, "__module__", None) or ""
    names = {OUTPUT, TARGET, *([] if home.startswith("torch.") else [INPUT])}
    takes, by_name = _assign_parameters(parameters, names, where)
    return CustomLoss(function, name, path, where, takes, by_name)


def _assign_parameters(
    parameters: Sequence[inspect.Parameter], names: set[str], where: str
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The value of each parameter: its name's, else the output, then the target."""
    named = {parameter.name for parameter in parameters} & names
    unassigned = [name for name in (OUTPUT, TARGET) if name not in named]
    takes: list[str] = []
    by_name: list[tuple[str, str]] = []
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            takes += unassigned
            unassigned = []
        elif parameter.name in names or parameter.default is inspect.Parameter.empty:
            if parameter.name not in names and not unassigned:
                raise LossError(
                    f"{where}: there is no value for the parameter {parameter.name!r}.", _SIGNATURES
                )
            value_name = parameter.name if parameter.name in names else unassigned.pop(0)
            passed = len(takes) == parameters.index(parameter)  # none before it was left out
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY or not passed:
                by_name.append((parameter.name, value_name))
            else:
                takes.append(value_name)
    if OUTPUT not in (*takes, *(value_name for _, value_name in by_name)):
        raise LossError(
            f"{where}: the loss does not take the model's output.",
            f"{_SIGNATURES} A parameter named input gets the model's input.",
        )
    return tuple(takes), tuple(by_name)


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"
