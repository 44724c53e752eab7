"""The kinds of tensor that can be recorded at a module, as the file and ``--what`` name them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hookscope.errors import RequestError

OUTPUT, INPUT = "output", "input"
OUTPUT_GRAD, INPUT_GRAD, PARAM_GRAD = "output.grad", "input.grad", "param.grad"
OP, OP_GRAD = "op", "op.grad"  # what a function returned that was called between modules
ATTENTION = "attention"  # the weights of one call of attention
EMITTED = "emitted"  # what a hook of the user's own handed to hookscope.emit
CAM = "cam"  # where the score of a class comes from, as a map over the image
ATTRIBUTION = "attribution"  # the share of each entry of the model's input in that score

# Added to a kind and to the name of a tensor: as it was before an edit.
UNEDITED = ".unedited"

# What a user chooses, and which kind that is: of a forward pass, and of a backward pass.
VALUE_KINDS = {"output": OUTPUT, "input": INPUT}
GRADIENT_KINDS = {"output": OUTPUT_GRAD, "input": INPUT_GRAD, "param": PARAM_GRAD}

# Of a gradient penalty, and of an optimizer's step.
SCORE_GRAD, PARAM_UPDATE = "score.grad", "param.update"


def resolve_kinds(what: str | Iterable[str], known: Mapping[str, str]) -> set[str]:
    """Return the kinds of records that ``--what`` asks for.

    Args:
        what: names, in a text with commas between.
        known: the kind that each name stands for: ``VALUES`` or ``GRADIENTS``.

    Raises:
        RequestError: a name is not among ``known``, or there is none.

    Example:
        >>> sorted(resolve_kinds("output,param", GRADIENTS))
        ['output.grad', 'param.grad']
    """
    names = [name.strip() for name in what.split(",")] if isinstance(what, str) else list(what)
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        wrong = repr(unknown[0]) if unknown else "Nothing"
        raise RequestError(f"{wrong} cannot be recorded.", f"Choose among {', '.join(known)}.")
    return {known[name] for name in names}
