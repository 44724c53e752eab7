"""The kinds of tensor that can be recorded at a module, as the file and ``--what`` name them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hookscope.errors import RequestError

OUTPUT, INPUT = "output", "input"
OUTPUT_GRAD, INPUT_GRAD, PARAM_GRAD = "output.grad", "input.grad", "param.grad"
OP, OP_GRAD = "op", "op.grad"  # the result of a function called between modules
ATTENTION = "attention"  # the weights of one call of attention
EMITTED = "emitted"  # a value that a user hook passed to hookscope.emit
CAM = "cam"  # a class activation map over the image
ATTRIBUTION = "attribution"  # the contribution of each entry of the model's input to the score

COLUMN = "column"  # numbers that are stored beside the rows of a dataset, such as labels
WEIGHT = "weight"  # a tensor of a file of weights

# The suffix of a kind, and of a tensor's name, for the value before an edit.
UNEDITED = ".unedited"

# The values of --what with their kinds: of a forward pass, and of a backward pass.
VALUE_KINDS = {"output": OUTPUT, "input": INPUT}
GRADIENT_KINDS = {"output": OUTPUT_GRAD, "input": INPUT_GRAD, "param": PARAM_GRAD}

# What a gradient penalty and an optimizer's step record.
SCORE_GRAD, PARAM_UPDATE = "score.grad", "param.update"


def is_gradient(kind: str) -> bool:
    """Whether a record of this kind is a gradient.

    Example:
        >>> is_gradient("output.grad"), is_gradient("input.grad.unedited"), is_gradient("output")
        (True, True, False)
    """
    return kind.removesuffix(UNEDITED).endswith(".grad")


def resolve_kinds(what: str | Iterable[str], known: Mapping[str, str]) -> set[str]:
    """Return the kinds of records that ``--what`` selects.

    Example:
        >>> sorted(resolve_kinds("output,param", GRADIENT_KINDS))
        ['output.grad', 'param.grad']
    """
    names = [name.strip() for name in what.split(",")] if isinstance(what, str) else list(what)
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        message = f"{unknown[0]!r} cannot be recorded." if unknown else "--what is empty."
        raise RequestError(message, f"Choose among {', '.join(known)}.")
    return {known[name] for name in names}
