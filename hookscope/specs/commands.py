"""The commands and the public functions, each in the file of its name in ``commands/``."""

from __future__ import annotations

# What each command does, by group, for the help; it is imported when it is used.
COMMANDS = {
    "Inspect a model": {
        "models": "List the models of torchvision and timm.",
        "tree": "Show the layers of a model, or the tensors in a file of weights.",
        "trace": "List every layer call in execution order, or time each layer.",
        "memory": "Show the peak memory of a training step or of inference.",
        "filters": "Plot the weights of a layer.",
    },
    "Record": {
        "capture": "Run a model and record the outputs of its layers.",
        "grads": "Run a model backward and record the gradients.",
        "fingerprint": "Write what the layers of a model compute to a small text file.",
        "step": "Run one optimizer step and record the parameter updates.",
        "extract": "Run a model over a dataset and store its features.",
    },
    "Train": {
        "run": "Run a program: watch its training, or look into its models.",
    },
    "Analyze": {
        "check": "Diagnose a model, a training run or weights: NaN, dead units, ...",
        "gradcheck": "Compare backward with numerical gradients.",
        "ablate": "Ablate layers one at a time and rank them by the effect.",
        "sweep": "Apply one edit at each layer, position, head or expert in turn.",
        "lens": "Show what each layer of a language model would predict.",
        "attribute": "Show what each token of the input contributes to a prediction.",
        "cam": "Show which parts of an image a class score depends on.",
        "diff": "Compare two captures, runs or files of weights, or models on one input.",
    },
    "Analyze features": {
        "similar": "Compare the layers of features folders: CKA, RSA, ...",
        "probe": "Measure how well a linear model reads labels from each layer.",
        "top": "Show the inputs that excite units most and least.",
    },
    "View results": {
        "show": "Show the contents of a result file or weights.",
        "plot": "Plot the contents of a result file or weights.",
        "report": "Write an HTML report of a result file, a training run or weights.",
        "export": "Write features, tensors, or curves of a run, to one file.",
        "verify": "Check features on disk for damage.",
    },
    "Settings and help": {
        "config": "Show every setting and its source.",
        "completion": "Print a shell completion script.",
        "help": "Explain a command or a topic.",
    },
}
_WITHOUT_FUNCTION = ("completion", "config", "help", "models", "run", "show")
_WITHOUT_COMMAND = ("load", "load_model", "record", "watch")

# The functions of Python.
FUNCTIONS = (
    *(name for group in COMMANDS.values() for name in group if name not in _WITHOUT_FUNCTION),
    *_WITHOUT_COMMAND,
)
