"""Comparison of a model's backward pass with central differences, entry by entry.

For f from R^n to R^m, column j of the Jacobian is (f(x + eps e_j) - f(x - eps e_j)) / (2 eps), with
an error of the order of eps^2 where f is smooth. Row k comes from a backward pass with a one at
output k. The two agree where |a - n| <= atol + rtol |n|, the rule of ``torch.autograd.gradcheck``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hookscope.errors import LossError, RequestError
from hookscope.execution.forward import forward, forward_error
from hookscope.execution.prepare import Prepared
from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.results.grad_check import Derivative, GradientComparison
from hookscope.sources.wrappers import unwrapped
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.nested import TensorPath, as_call, map_tensors, walk

LARGEST = 10_000_000  # entries of a Jacobian: 80 MB; twice that is in memory
PARAMETERS = 10_000  # entries of parameters that are varied, with two runs of the model each
MOST_ENTRIES = 5  # entries listed where the two differ

Inputs = dict[TensorPath, Tensor]
Outputs = list[tuple[TensorPath, tuple[int, ...]]]


def compare_jacobians(
    prepared: Prepared, eps: float, atol: float, rtol: float
) -> Iterator[GradientComparison]:
    """Yield a comparison of the analytical and the numerical Jacobian for each input and output."""
    inputs = dict(_floating_tensors(as_call(prepared.value)))
    if not any(tensor.numel() for tensor in inputs.values()):
        raise RequestError(
            f"The input of {prepared.loaded.spec} contains no floating-point values.",
            "Set the shapes with --shape, once for each input.",
        )
    parameters = {} if describe_fixed_parameters(prepared) else _parameters(prepared)
    analytical, outputs = _analytical_jacobians(prepared, inputs, parameters)
    for path, tensor in (inputs | parameters).items():
        numerical = _numerical_jacobians(prepared, path, tensor, path in parameters, eps, outputs)
        varied = path[0] if path in parameters else ".".join(("input", *path[1:]))
        for (output, shape), rows, columns in zip(
            outputs, analytical[path], numerical, strict=True
        ):
            yield _comparison(
                varied,
                ".".join(("output", *output)),
                (tuple(tensor.shape), shape),
                (rows, columns),
                (atol, rtol),
            )


def describe_fixed_parameters(prepared: Prepared) -> str:
    """Return a phrase for the parameters, if they are too many to be varied; else empty."""
    count = sum(parameter.numel() for parameter in _parameters(prepared).values())
    return f"the parameters ({count:,} numbers)" if count > PARAMETERS else ""


def _parameters(prepared: Prepared) -> Inputs:
    named = unwrapped(prepared.module).named_parameters()
    return {(name,): x for name, x in named if x.requires_grad and x.is_floating_point()}


def _analytical_jacobians(
    prepared: Prepared, inputs: Inputs, parameters: Inputs
) -> tuple[dict[TensorPath, list[Tensor | None]], Outputs]:
    """For each input and parameter its Jacobians by backward passes, one for each output or None.

    The second value has the path and the shape of each output.
    """
    leaves = {path: x.detach().clone().requires_grad_() for path, x in inputs.items()}
    with grad_mode(True):
        results = _evaluate(prepared, {path: x.clone() for path, x in leaves.items()})
    if not results:
        raise LossError(
            f"{prepared.loaded.spec} returns no floating-point tensor. It has no gradient.",
            "Choose a model that returns one.",
        )
    leaves |= parameters
    numel_in = sum(x.numel() for x in leaves.values())
    numel_out = sum(result.numel() for _, result in results)
    if numel_in * numel_out > LARGEST:
        raise RequestError(
            f"{numel_in:,} inputs and parameters and {numel_out:,} outputs make"
            f" {numel_in * numel_out:,} derivatives; the limit is {LARGEST:,}.",
            "Use a smaller --shape, or check one layer on its own.",
        )
    jacobians: dict[TensorPath, list[Tensor | None]] = {path: [] for path in leaves}
    for _, result in results:
        rows = [_jacobian_row(prepared, result, k, leaves) for k in range(result.numel())]
        for n, (path, leaf) in enumerate(leaves.items()):
            grads = [row[n] for row in rows]
            zero = torch.zeros_like(leaf)
            flat = [(zero if grad is None else grad).reshape(-1) for grad in grads]
            known = any(grad is not None for grad in grads)
            jacobians[path].append(torch.stack(flat) if known else None)
    return jacobians, [(path, tuple(result.shape)) for path, result in results]


def _jacobian_row(
    prepared: Prepared, result: Tensor, k: int, leaves: Inputs
) -> tuple[Tensor | None, ...]:
    if not result.requires_grad:
        return (None,) * len(leaves)
    unit = torch.zeros(result.numel(), dtype=result.dtype)
    unit[k] = 1
    try:
        return torch.autograd.grad(
            result,
            list(leaves.values()),
            unit.reshape(result.shape),
            retain_graph=True,
            allow_unused=True,
        )
    except Exception as error:
        raise forward_error(prepared.module, prepared.value, error, during="backward") from error


def _numerical_jacobians(
    prepared: Prepared, path: TensorPath, x: Tensor, in_model: bool, eps: float, outputs: Outputs
) -> list[Tensor]:
    """For each output its Jacobian with respect to one tensor, by central differences.

    A parameter, which is ``in_model``, is varied in place and restored bit for bit.
    """
    columns: list[list[Tensor]] = [[] for _ in outputs]
    varied = x.detach() if in_model else x.detach().clone()
    for j in range(x.numel()):
        index = _unravel(j, tuple(x.shape))
        value = varied[index].clone()
        sides = []
        with _restored(varied, index), grad_mode(False):
            for step in (eps, -eps):
                varied[index] = value + step
                sides.append(_evaluate(prepared, {} if in_model else {path: varied.clone()}))
        for column, (_, above), (_, below) in zip(columns, *sides, strict=True):
            column.append(((above - below) / (2 * eps)).reshape(-1))
    return [torch.stack(column, dim=1) for column in columns]


@signal_safe_contextmanager
def _restored(tensor: Tensor, index: tuple[int, ...]) -> Iterator[None]:
    value = tensor[index].clone()
    try:
        yield
    finally:
        tensor[index] = value


def _evaluate(
    prepared: Prepared, changed: dict[TensorPath, Tensor]
) -> list[tuple[TensorPath, Tensor]]:
    """The floating-point outputs of the model with some inputs changed, from the same seed."""
    torch.default_generator.manual_seed(prepared.seed)
    call = map_tensors(
        as_call(prepared.value),
        lambda path, tensor: changed[path] if path in changed else tensor.detach().clone(),
    )
    return list(_floating_tensors(forward(prepared, call=call)))


def _floating_tensors(value: Any) -> Iterator[tuple[TensorPath, Tensor]]:
    for path, tensor in walk(value):
        if tensor.is_floating_point():
            if tensor.layout is not torch.strided:
                raise RequestError(
                    "The model takes or returns a sparse tensor, which gradcheck does not support.",
                    "Convert it to a dense tensor inside the module that is checked.",
                )
            yield path, tensor


def _comparison(
    input: str,
    output: str,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    jacobians: tuple[Tensor | None, Tensor],
    tolerances: tuple[float, float],
) -> GradientComparison:
    analytical, numerical = jacobians
    note = ""
    if analytical is None:
        analytical = torch.zeros_like(numerical)
        note = "no gradient" if bool(numerical.any()) else "the output does not depend on it"
    difference = (analytical - numerical).abs()
    close = torch.isclose(analytical, numerical, rtol=tolerances[1], atol=tolerances[0])
    wrong = int((~close).sum())
    # NaN counts as the largest distance; entries that agree come after those that do not.
    distance = difference.nan_to_num(nan=torch.inf, posinf=torch.inf)
    distance = torch.where(close & (wrong > 0), -1.0, distance).reshape(-1)
    positions = distance.argsort(descending=True, stable=True)[: min(max(wrong, 1), MOST_ENTRIES)]
    entries = []
    for position in positions.tolist():
        k, j = divmod(position, numerical.shape[1])
        a, n = float(analytical[k, j]), float(numerical[k, j])
        entries.append(Derivative(_unravel(j, shapes[0]), _unravel(k, shapes[1]), a, n, abs(a - n)))
    return GradientComparison(
        input, output, *shapes, numerical.numel(), wrong, tuple(entries), note
    )


def _unravel(position: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index of an entry from its position in row-major order."""
    return tuple(map(int, np.unravel_index(position, shape)))
