"""Custom losses: functions of the model's output, the target and the model's input."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from hookscope.errors import LossError, LossFailed, ModelError
from hookscope.execution.loss import Loss
from hookscope.execution.target import target_for_function
from hookscope.sources.user_code import load_functions, run_user_code
from hookscope.specs.losses import check_custom_loss_options
from hookscope.specs.model_spec import end_sentence, may_name_function, parse_function
from hookscope.tensors.nested import map_tensors, walk

OUTPUT, TARGET, INPUT = "output", "target", "input"
_SIGNATURES = (
    "Write loss(output), loss(output, target), or name the parameters output, input, target."
)


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
            INPUT: map_tensors(input, lambda path, tensor: tensor.detach().clone()),
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
            shape = "x".join(map(str, value.shape)) or "no dimensions"
            kind = str(value.dtype).removeprefix("torch.")
            raise LossError(f"{self.where}: the loss returned {shape} of {kind}.", wanted)
        if not value.requires_grad and any(t.requires_grad for _, t in walk(output)):
            raise LossError(
                f"{self.where}: the loss does not depend on the model's output.",
                "Compute it from the output without detach(), item(), numpy() or no_grad().",
            )
        return value.reshape(())


def resolve_custom_loss(loss: object, reduction: str | None, raw: bool) -> CustomLoss | None:
    """Return the custom loss that ``loss`` names or is; None if it is the name of a formula.

    Example:
        >>> import torch
        >>> energy = resolve_custom_loss(lambda output: (output**2).sum(), None, False)
        >>> energy.compute(torch.ones(2, 3), "argmax", None).value
        tensor(6.)
    """
    if callable(loss):
        name = getattr(loss, "__name__", type(loss).__name__)
        check_custom_loss_options(name, reduction, raw)
        return _inspect_function(loss, name, "")
    if not isinstance(loss, str) or not may_name_function(loss):
        return None
    reference = parse_function(loss)
    check_custom_loss_options(loss, reduction, raw)
    [function] = load_functions([reference])
    return _inspect_function(function, loss, reference.home if reference.in_file else "")


def _inspect_function(function: Callable[..., Any], name: str, path: str) -> CustomLoss:
    target_function = function.forward if isinstance(function, nn.Module) else function
    code = getattr(inspect.unwrap(target_function), "__code__", None)
    where = f"{path or code.co_filename}, line {code.co_firstlineno}" if code else path or name
    try:
        parameters = list(inspect.signature(target_function).parameters.values())
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
    """The value of each parameter: that of its name, else the output, then the target."""
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
            passed = len(takes) == parameters.index(
                parameter
            )  # no parameter before it was left out
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
