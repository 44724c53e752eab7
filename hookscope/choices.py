"""The words to choose among when a model is run, for the command line and for Python alike."""

from __future__ import annotations

DEFAULT_MODEL = "resnet18"
DTYPES = ("float32", "float64", "float16", "bfloat16")
DEVICES = ("cpu", "cuda", "mps", "auto")
PENALTIES = ("gp",)

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
