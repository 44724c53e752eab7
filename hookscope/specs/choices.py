"""The words to choose among when a model is run, for the command line and for Python alike."""

from __future__ import annotations

DEFAULT_MODEL = "resnet18"
AUTOCASTS = ("bfloat16", "float16")
DECODINGS = ("exact", "fast")  # how a JPEG of a dataset becomes an image
DTYPES = ("float32", "float64", "float16", "bfloat16")
DEVICES = ("cpu", "cuda", "mps", "auto")
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
PENALTIES = ("gp",)

# How ``ablate`` knocks something out: by the word for it, the operation of ``--edit``.
ABLATION_EDITS = {"zero": "zero", "mean": "mean:channel", "noise": "noise:1std"}
# What each knock-out is told by, and can be ranked by.
ABLATION_METRICS = ("score", "loss", "output")

# By the word for it, the class in torch.optim. Left out are those that need more than one gradient
# (LBFGS), sparse ones (SparseAdam) or matrices alone (Muon).
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


# When a hook of the user's own runs: in a forward pass, in a backward pass, around a step.
FORWARD, FORWARD_PRE = "forward", "forward_pre"
BACKWARD, BACKWARD_PRE, ON_TENSOR = "backward", "backward_pre", "tensor"
GRADIENT_HOOKS = (BACKWARD, BACKWARD_PRE, ON_TENSOR)
VALUE_HOOKS = (FORWARD, FORWARD_PRE)
STEP_PRE, STEP_POST = "step_pre", "step_post"
STEP_HOOKS = (STEP_PRE, STEP_POST)
HOOK_KINDS = (*VALUE_HOOKS, *GRADIENT_HOOKS, *STEP_HOOKS)

# Which of them run, by the verb.
HOOK_KINDS_OF = {
    "capture": VALUE_HOOKS,
    "grads": (*VALUE_HOOKS, *GRADIENT_HOOKS),
    "step": HOOK_KINDS,
}

# Which channels of a tensor are drawn, and whether their maps share one scale of colours.
CHANNEL_ORDERS = ("index", "strength", "random")
COLOR_SCALES = ("grid", "each")
# What a capture is drawn as, and how a picture's file may end.
PLOT_KINDS = ("maps", "hist", "flow", "heat", "attention")
PICTURE_SUFFIXES = (".png", ".svg", ".pdf")
