"""The methods of ``attribute`` and its options. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hookscope.errors import RequestError
from hookscope.specs.cam_methods import STEPS as STEPS
from hookscope.specs.settings import setting

INTEGRATED, GRADIENT, OCCLUSION, ROLLOUT = "integrated", "gradxinput", "occlusion", "rollout"
ZERO, MEAN = "zero", "mean"


class AttributionMethod(NamedTuple):
    """A method that distributes the score of a target over the tokens of the input."""

    name: str
    formula: str
    paper: str


METHODS = {
    entry.name: entry
    for entry in (
        AttributionMethod(
            INTEGRATED,
            "sum_k (x_pk - b_pk) integral of g_pk from b to x",
            "Sundararajan et al., 2017 (arXiv:1703.01365)",
        ),
        AttributionMethod(GRADIENT, "sum_k x_pk g_pk", "Shrikumar et al., 2016 (arXiv:1605.01713)"),
        AttributionMethod(
            OCCLUSION,
            "S(x) - S(x with b_p in place of x_p)",
            "Zeiler and Fergus, 2013 (arXiv:1311.2901)",
        ),
        AttributionMethod(
            ROLLOUT,
            "mean over the read tokens t of (B_n ... B_1)[t, p], B_i = (I + W_i) / 2, W_i = mean"
            " over heads of the attention weights of layer i",
            "Abnar and Zuidema, 2020 (arXiv:2005.00928)",
        ),
    )
}

# Other names of these methods, for suggestions.
METHOD_ALIASES = {
    **dict.fromkeys(("integratedgradients", "integratedgradient", "ig"), INTEGRATED),
    **dict.fromkeys(("gradientxinput", "inputxgradient", "inputgradient"), GRADIENT),
    **dict.fromkeys(("gradient", "gradients", "saliency", "gradinput"), GRADIENT),
    **dict.fromkeys(("ablation", "featureablation", "leaveoneout"), OCCLUSION),
    **dict.fromkeys(("attention", "attentionrollout", "attn"), ROLLOUT),
}

_BASELINE_METHODS = (INTEGRATED, OCCLUSION)


@dataclass(frozen=True)
class AttributeOptions:
    """What ``attribute`` explains, and how."""

    section = "Attribution"

    by: str = setting(
        INTEGRATED,
        f"Method: {', '.join(METHODS)}.",
        choices=tuple(METHODS),
        aliases=METHOD_ALIASES,
        metavar="METHOD",
        python="``integrated`` (integrated gradients), ``gradxinput`` (gradient times input),"
        " ``occlusion`` (one run for each token) or ``rollout`` (attention rollout, which does not"
        " depend on the target). ``hookscope.specs.attribution_options.METHODS`` has the formulas"
        " and the papers.",
    )
    target: str | int = setting(
        "argmax",
        "Next token, or class, that is explained: text, id or argmax.",
        metavar="TOKEN",
        python="the token or class whose logit is the score: its text, its id, or ``argmax`` for"
        " the one that the model predicts.",
    )
    against: str | int | None = setting(
        None,
        "Token or class whose logit is subtracted.",
        metavar="TOKEN",
        python="a token or class whose logit is subtracted from the score.",
    )
    position: int | None = setting(
        None,
        "Position after which the token is predicted. Default: the last.",
        metavar="N",
        python="the position after which the token is predicted, without padding; negative from"
        " the end. None for the last one.",
    )
    steps: int | None = setting(
        None,
        "Steps of integrated gradients.",
        minimum=1,
        metavar="N",
        shown_default=str(STEPS),
        python="for ``integrated``: points of the Gauss-Legendre quadrature; None for 50.",
    )
    baseline: str | int | None = setting(
        None,
        "Token in place of the others: text, id, zero or mean. Default: zero; mean if"
        " attributions from zero do not add up.",
        metavar="TOKEN",
        python="for ``integrated`` and ``occlusion``: ``zero``, an embedding of zeros; ``mean``,"
        " the mean of all embeddings; or a token, by its text or id. None for ``zero``, and for"
        " ``mean`` where integrated gradients from ``zero`` do not add up.",
    )

    def __post_init__(self) -> None:
        for name in ("target", "against", "baseline"):
            check_token(getattr(self, name), optional=name != "target")
        if self.against == "argmax":
            raise RequestError(
                "argmax is not a token to compare with.", "Give the text or the id of one."
            )
        if self.steps is not None and self.by != INTEGRATED:
            raise RequestError(
                f"--steps is only for --by {INTEGRATED}, and the method is {self.by}.",
                f"Leave out --steps, or use --by {INTEGRATED}.",
            )
        if self.baseline is not None and self.by not in _BASELINE_METHODS:
            raise RequestError(
                f"--baseline is only for --by {' and --by '.join(_BASELINE_METHODS)}, and the"
                f" method is {self.by}.",
                "Leave out --baseline, or choose one of these methods.",
            )


def check_token(value: object, *, optional: bool = False) -> None:
    """Raise RequestError unless a value is the text or the id of a token."""
    if value is None and optional:
        return
    if value == "" or isinstance(value, bool) or not isinstance(value, str | int):
        raise RequestError(
            f"{value!r} is not a token.", "Give its text, such as ' Paris', or its id."
        )
