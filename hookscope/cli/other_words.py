"""Words that people try in place of a command or an option, each with what is suggested for it.

A suggestion is printed with the error, and never run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# Each word with the command that does it, and the options that it needs.
COMMANDS: Mapping[str, str] = {
    **dict.fromkeys(("profile", "profiler", "time", "timing", "benchmark", "latency"), "trace"),
    **dict.fromkeys(("calls", "order", "chrome"), "trace"),
    **dict.fromkeys(("summary", "summarize", "layers", "modules", "parameters", "params"), "tree"),
    **dict.fromkeys(("shapes", "flops", "macs"), "tree --shapes"),
    **dict.fromkeys(("hist", "histogram", "histograms"), "plot FILE --kind hist"),
    **dict.fromkeys(("maps", "featuremaps"), "plot FILE --kind maps"),
    **dict.fromkeys(("gradcam", "heatmap", "saliencymap"), "cam"),
    "saliency": "cam --by saliency",
    "occlusion": "cam --by occlusion",
    **dict.fromkeys(("integrated", "ig", "explain", "attributions"), "attribute"),
    **dict.fromkeys(("attention", "attentions", "attn"), "capture --attention"),
    **dict.fromkeys(("record", "hook", "activations", "forward"), "capture"),
    **dict.fromkeys(("backward", "gradients", "gradient", "grad"), "grads"),
    **dict.fromkeys(("update", "optimize", "optimizer"), "step"),
    **dict.fromkeys(("features", "embed", "embeddings", "dataset"), "extract"),
    **dict.fromkeys(("train", "watch", "monitor", "training"), "run"),
    **dict.fromkeys(("debug", "doctor", "diagnose", "lint", "health", "nan"), "check"),
    **dict.fromkeys(("compare", "cmp"), "diff"),
    **dict.fromkeys(("patch", "patching", "quantize"), "sweep"),
    **dict.fromkeys(("logitlens", "predictions"), "lens"),
    **dict.fromkeys(("cka", "rsa", "similarity"), "similar"),
    **dict.fromkeys(("linear", "classify"), "probe"),
    **dict.fromkeys(("weights", "kernels"), "filters"),
    **dict.fromkeys(("list", "ls", "zoo"), "models"),
    **dict.fromkeys(("view", "print", "cat", "open", "inspect", "info"), "show"),
    **dict.fromkeys(("visualize", "visualise", "draw", "picture", "image"), "plot"),
    **dict.fromkeys(("html", "page"), "report"),
    **dict.fromkeys(("convert", "csv", "save"), "export"),
    **dict.fromkeys(("settings", "configuration"), "config"),
}

# Each word with the option that does it; the first of them that the command has is suggested.
OPTIONS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("image", "images", "img", "picture", "photo", "file", "data", "dataset", "x"),
        ("--input",),
    ),
    **dict.fromkeys(("text", "prompt", "texts"), ("--input text:...",)),
    **dict.fromkeys(("out", "save", "saveto", "dest", "csv"), ("--output",)),
    **dict.fromkeys(("checkpoint", "ckpt", "statedict", "load"), ("--weights",)),
    "pretrained": ("--weights default",),
    **dict.fromkeys(("gpu", "cuda"), ("--device cuda",)),
    **dict.fromkeys(("half", "fp16", "bf16"), ("--dtype",)),
    **dict.fromkeys(("class", "label", "classindex", "targetclass"), ("--target",)),
    **dict.fromkeys(("module", "modules", "name", "layers"), ("--layer",)),
    **dict.fromkeys(("attention", "attentions", "attn"), ("--attention", "--kind attention")),
    **dict.fromkeys(("hist", "histogram"), ("--kind hist",)),
    **dict.fromkeys(("algorithm", "method", "technique"), ("--by",)),
    **dict.fromkeys(("flops", "summary"), ("--shapes",)),
    **dict.fromkeys(("format", "tsv"), ("--csv", "--json")),
    **dict.fromkeys(("bits", "quantize", "int8", "int4"), ("--edit quantize-weights:8",)),
    **dict.fromkeys(("limit", "head", "n", "max", "rows", "k", "topk"), ("--top", "--count")),
    **dict.fromkeys(("order", "orderby", "sortby"), ("--sort",)),
    **dict.fromkeys(("overwrite", "yes", "f"), ("--force",)),
    **dict.fromkeys(("args", "kwargs", "modelargs"), ("--model-arg",)),
}


def command_for(word: str) -> str:
    """Return the command line that is suggested for a word; empty if there is none.

    >>> command_for("grad-cam"), command_for("conv1")
    ('cam', '')
    """
    return COMMANDS.get(_plain(word), "")


def option_for(word: str, flags: Iterable[str]) -> str:
    """Return the option that is suggested for a flag, if a command with ``flags`` has it.

    >>> option_for("--image", ["--input"]), option_for("--image", [])
    ('--input', '')
    """
    known = set(flags)
    options = OPTIONS.get(_plain(word), ())
    return next((option for option in options if option.split()[0] in known), "")


def _plain(word: str) -> str:
    return re.sub(r"[\s_-]+", "", word.lower())
