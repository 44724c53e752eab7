"""The values to choose among, for the command line and for Python."""

from __future__ import annotations

from collections.abc import Iterable

from hookscope.errors import RequestError

DEFAULT_MODEL = "resnet18"
AUTOCASTS = ("bfloat16", "float16")
DECODINGS = ("exact", "fast")  # how a JPEG of a dataset becomes an image
DTYPES = ("float32", "float64", "float16", "bfloat16")
DEVICES = ("cpu", "cuda", "mps", "auto")
# Other names of devices and dtypes, for suggestions.
DEVICE_ALIASES = {"gpu": "cuda", "nvidia": "cuda", "metal": "mps"}
DTYPE_ALIASES = {
    **dict.fromkeys(("float", "fp32", "f32", "single"), "float32"),
    **dict.fromkeys(("double", "fp64", "f64"), "float64"),
    **dict.fromkeys(("half", "fp16", "f16"), "float16"),
    "bf16": "bfloat16",
}
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
ONNX_OPTIMIZATIONS = ("none", "basic", "extended", "all")  # levels of onnxruntime
PENALTIES = ("gp",)

# The values of ``ablate --by``, each with the operation of ``--edit`` that it stands for.
ABLATION_EDITS = {"zero": "zero", "mean": "mean:channel", "noise": "noise:1std"}
# The metrics of an ablation, which it can be ranked by.
ABLATION_METRICS = ("score", "loss", "output")
# The metrics of a sweep, of which its map shows one.
SWEEP_METRICS = ("difference", "score", "loss", "kl", "output")

# The optimizers by name, each with its class in torch.optim. Not among them are those that need
# several gradients (LBFGS), sparse gradients (SparseAdam) or only matrices (Muon).
OPTIMIZERS = {
    "sgd": "SGD",
    "adam": "Adam",
    "adamw": "AdamW",
    "rmsprop": "RMSprop",
    "adagrad": "Adagrad",
    "adadelta": "Adadelta",
    "adamax": "Adamax",
    "adafactor": "Adafactor",
    "asgd": "ASGD",
    "nadam": "NAdam",
    "radam": "RAdam",
    "rprop": "Rprop",
}

# The kinds of user hooks: of a forward pass, of a backward pass, and around an optimizer's step.
FORWARD, FORWARD_PRE = "forward", "forward_pre"
BACKWARD, BACKWARD_PRE, ON_TENSOR = "backward", "backward_pre", "tensor"
GRADIENT_HOOKS = (BACKWARD, BACKWARD_PRE, ON_TENSOR)
VALUE_HOOKS = (FORWARD, FORWARD_PRE)
STEP_PRE, STEP_POST = "step_pre", "step_post"
STEP_HOOKS = (STEP_PRE, STEP_POST)
HOOK_KINDS = (*VALUE_HOOKS, *GRADIENT_HOOKS, *STEP_HOOKS)
# The names that PyTorch's methods have for some of them, for suggestions.
HOOK_KIND_ALIASES = {
    **dict.fromkeys(("fullbackward", "fullbackwardhook", "backwardhook"), BACKWARD),
    **dict.fromkeys(("fullbackwardpre", "fullbackwardprehook", "backwardprehook"), BACKWARD_PRE),
    **dict.fromkeys(("pre", "forwardprehook"), FORWARD_PRE),
    "forwardhook": FORWARD,
    **dict.fromkeys(("grad", "gradient", "tensorhook"), ON_TENSOR),
}

# The kinds that each command runs.
HOOK_KINDS_OF = {
    "capture": VALUE_HOOKS,
    "grads": (*VALUE_HOOKS, *GRADIENT_HOOKS),
    "step": HOOK_KINDS,
    "run": (*VALUE_HOOKS, *GRADIENT_HOOKS),
}

# Which channels of a tensor are drawn, and whether they share one colour scale.
CHANNEL_ORDERS = ("index", "strength", "random")
COLOR_SCALES = ("grid", "each")
# The kinds of plots: of a capture, and the last one of a features folder.
SCATTER = "scatter"
PLOT_KINDS = ("maps", "hist", "flow", "heat", "attention", SCATTER)
PLOT_KIND_SYNONYMS = {"histogram": "hist", "histograms": "hist", "heatmap": "heat"}
# Pixels per inch of a picture: the default, the least and the most.
DPI, MIN_DPI, MAX_DPI = 150, 20, 1200
OVERLAY_ALPHA = 0.65  # opacity of a map over the grey image


def check_choice(keyword: str, value: str, known: Iterable[str]) -> None:
    """Raise RequestError if ``value`` is not among those that ``keyword`` takes."""
    if value not in known:
        raise RequestError(
            f"{value!r} is not a valid value for {keyword}.", f"Choose among {', '.join(known)}."
        )
