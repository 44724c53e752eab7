"""Words that a command does not take, with what is suggested for each, and never run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence

import click

from hookscope.errors import RequestError
from hookscope.files.shell_words import quote_word
from hookscope.files.words import join_first

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
    "md": ("--markdown",),
    **dict.fromkeys(("bits", "quantize", "int8", "int4"), ("--edit quantize-weights:8",)),
    **dict.fromkeys(("limit", "head", "n", "max", "rows", "k", "topk"), ("--top", "--count")),
    **dict.fromkeys(("order", "orderby", "sortby"), ("--sort",)),
    **dict.fromkeys(("overwrite", "yes", "f"), ("--force",)),
    **dict.fromkeys(("args", "kwargs", "modelargs"), ("--model-arg",)),
}

# Options with patterns: a file after such a value is not a model of the user's.
_PATTERNS = ("--layer", "-l", "--type")
_INPUTS = ("--input", "-i")
_MODELS = (".py", ".pt", ".pth", ".pt2")  # may follow an input of the same kind


def command_for(word: str) -> str:
    """Return the command line that is suggested for a word; empty if there is none."""
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


def check_arguments(ctx: click.Context, typed: Sequence[str], extra: Sequence[str]) -> None:
    """Raise an error if arguments are left, or the files of a pattern take the model's place."""
    flag, files = _option_with_files(ctx.command, typed)
    if flag and (extra or _stands_for_model(flag, files)):
        raise RequestError(
            f"{flag} takes one value, and {len(files)} files follow it: {join_first(files)}.",
            f"Put a pattern in quotes, so that the shell does not expand it: {flag} 'PATTERN'."
            f" For several values repeat {flag}.",
        )
    if not extra:
        return
    if any(map(os.path.isfile, extra)):
        raise RequestError(
            f"Got unexpected extra argument{'s' * (len(extra) > 1)}: {join_first(extra)}.",
            _hint_for_files(extra, takes_input=_takes_input(ctx.command)),
        )
    ctx.fail(f"Got unexpected extra argument{'s' * (len(extra) > 1)} ({' '.join(extra)})")


def _hint_for_files(extra: Sequence[str], *, takes_input: bool) -> str:
    """Return what to do about arguments that are left, of which some are files."""
    from hookscope.files.file_types import ARRAY, AUDIO, IMAGE, VIDEO, describe_file

    kinds = [describe_file(file)[0] if os.path.isfile(file) else None for file in extra]
    if takes_input and all(kind in (ARRAY, AUDIO, IMAGE, VIDEO) for kind in kinds):
        several = " and repeat --input for each." if len(extra) > 1 else ""
        return (
            f"{extra[0]} is {kinds[0]}. Give an input with --input {quote_word(extra[0])}{several}"
        )
    return (
        f"{'Write --input before a file of input. ' * takes_input}"
        "If a pattern was meant, put it in quotes, so that the shell does not expand it to names of"
        " files."
    )


def _option_with_files(command: click.Command, typed: Sequence[str]) -> tuple[str, list[str]]:
    """Return the first repeatable option that several files follow, and the files; else empty."""
    # Only an option that can be repeated may be meant to take several files.
    options = [param for param in command.params if isinstance(param, click.Option)]
    flags = {flag for option in options if option.multiple for flag in option.opts}
    for position, word in enumerate(typed):
        if word in flags:
            files = []
            for name in typed[position + 1 :]:
                if not os.path.isfile(name):
                    break
                files.append(name)
            if len(files) > 1:
                return word, files
    return "", []


def _takes_input(command: click.Command) -> bool:
    return any("--input" in param.opts for param in command.params)


def _stands_for_model(flag: str, files: Sequence[str]) -> bool:
    """Whether the second file cannot be meant as the model after a value of the option."""
    endings = {os.path.splitext(file)[1] for file in files}
    if len(endings) > 1 or endings == {""}:
        return False
    return flag in _PATTERNS or (flag in _INPUTS and not endings & set(_MODELS))
