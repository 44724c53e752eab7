"""The methods of ``cam``: names, formulas, papers, and which options each takes. Torch-free."""

from __future__ import annotations

from typing import Any, NamedTuple

from hookscope.errors import RequestError

DEFAULT_METHOD = "gradcam"
STEPS = 50
PATCHES = 8  # of occlusion, along the shorter side of an image
BASELINES = ("zero", "black", "white")
UPSAMPLINGS = ("bilinear", "nearest")

AT_LAYER, FROM_VALUES, FROM_ATTENTION, AT_INPUT, FROM_INPUT = (
    "gradients at a layer",
    "values of a layer",
    "attention weights",
    "gradient at the image",
    "changes of the image",
)


class CamMethod(NamedTuple):
    """A method that explains the score of a class by a map.

    ``formula`` is the map at position p. A is the layer's output, G the gradient of the target's
    score S at it, k runs over the channels; x is the image, g the gradient of S at it, c runs over
    its channels.
    """

    name: str
    formula: str
    paper: str
    source: str  # AT_LAYER, FROM_VALUES, ...


METHODS: dict[str, CamMethod] = {
    entry.name: entry
    for entry in (
        CamMethod(
            "gradcam",
            "relu(sum_k mean(G_k) A_k)",
            "Selvaraju et al., 2017 (arXiv:1610.02391)",
            AT_LAYER,
        ),
        CamMethod(
            "gradcam++",
            "relu(sum_k w_k A_k), w_k = sum_p a relu(G_k), a = G_k^2 / (2 G_k^2 + sum(A_k) G_k^3)",
            "Chattopadhay et al., 2018 (arXiv:1710.11063)",
            AT_LAYER,
        ),
        CamMethod(
            "hirescam",
            "relu(sum_k G_k A_k)",
            "Draelos and Carin, 2020 (arXiv:2011.08891)",
            AT_LAYER,
        ),
        CamMethod(
            "layercam",
            "relu(sum_k relu(G_k) A_k)",
            "Jiang et al., 2021 (doi:10.1109/TIP.2021.3089943)",
            AT_LAYER,
        ),
        CamMethod(
            "eigencam",
            "relu(sum_k v_k A_k), v = first right singular vector of A (positions by channels)",
            "Muhammad and Yeasin, 2020 (arXiv:2008.00299)",
            FROM_VALUES,
        ),
        CamMethod(
            "scorecam",
            "relu(sum_k w_k A_k), w = softmax over k of S(x times A_k scaled to 0..1)",
            "Wang et al., 2020 (arXiv:1910.01279)",
            FROM_VALUES,
        ),
        CamMethod(
            "rollout",
            "mean over the read tokens t of (B_n ... B_1)[t, p], B_i = (I + W_i) / 2, W_i = mean"
            " over heads of the attention weights of layer i",
            "Abnar and Zuidema, 2020 (arXiv:2005.00928)",
            FROM_ATTENTION,
        ),
        CamMethod(
            "guided",
            "max_c |g_c|, where each ReLU passes back only positive gradients",
            "Springenberg et al., 2015 (arXiv:1412.6806)",
            AT_INPUT,
        ),
        CamMethod(
            "saliency",
            "max_c |g_c|",
            "Simonyan et al., 2014 (arXiv:1312.6034)",
            AT_INPUT,
        ),
        CamMethod(
            "integrated",
            "|sum_c (x_c - b_c) integral of g_c from b to x|, b the baseline",
            "Sundararajan et al., 2017 (arXiv:1703.01365)",
            AT_INPUT,
        ),
        CamMethod(
            "gradxinput",
            "|sum_c x_c g_c|",
            "Shrikumar et al., 2016 (arXiv:1605.01713)",
            AT_INPUT,
        ),
        CamMethod(
            "occlusion",
            "relu(S(x) - S(x with b in the patch of p)), b the baseline",
            "Zeiler and Fergus, 2013 (arXiv:1311.2901)",
            FROM_INPUT,
        ),
    )
}

# Other names of these methods, for suggestions.
METHOD_ALIASES = {
    "gradcam": "gradcam",
    **dict.fromkeys(("gradcam++", "gradcamplusplus", "gradcampp"), "gradcam++"),
    **dict.fromkeys(("integratedgradients", "integratedgradient", "ig"), "integrated"),
    **dict.fromkeys(("guidedbackprop", "guidedbackpropagation"), "guided"),
    **dict.fromkeys(("attentionrollout", "attention", "attn"), "rollout"),
    **dict.fromkeys(("gradient", "gradients", "vanillagradient", "inputgradient"), "saliency"),
    **dict.fromkeys(("gradientxinput", "inputxgradient", "gradinput"), "gradxinput"),
}


def check_cam_options(
    method: str,
    layer: Any,
    steps: int | None,
    baseline: Any,
    upsample: str,
    patch: int | None = None,
) -> None:
    """Raise RequestError if the method does not use an option."""
    takes: dict[str, tuple[str, ...]] = {
        "steps": ("integrated",),
        "patch": ("occlusion",),
        "baseline": ("integrated", "occlusion"),
    }
    for name, value in (("steps", steps), ("baseline", baseline), ("patch", patch)):
        if value is not None and method not in takes[name]:
            users = " or --by ".join(takes[name])
            raise RequestError(
                f"--{name} is only for --by {users}, and the method is {method}.",
                f"Leave out --{name}, or use --by {users}.",
            )
    if METHODS[method].source == FROM_ATTENTION and layer is not None:
        raise RequestError(
            f"{method} uses the attention of all layers and takes no layer.",
            "Leave out --layer, or choose a method that takes one, such as gradcam.",
        )
    if METHODS[method].source in (AT_INPUT, FROM_INPUT):
        _check_no_layer(method, layer, upsample)


def _check_no_layer(method: str, layer: Any, upsample: str) -> None:
    if layer is not None:
        raise RequestError(
            f"{method} computes its map at the image and takes no layer.",
            "Leave out --layer, or choose a method that takes one, such as gradcam.",
        )
    if upsample != UPSAMPLINGS[0]:
        raise RequestError(
            f"{method} has a value for every pixel, so there is nothing to upsample.",
            "Leave out --upsample.",
        )
