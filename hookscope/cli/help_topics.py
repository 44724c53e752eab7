"""The help topics, what the values of some options can be: ``hookscope help TOPIC``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import click

from hookscope.cli.help_layout import Rows

# The topics and their summaries, in the order of the help.
TOPICS: Mapping[str, str] = {
    "model-specs": "What can be given as MODEL.",
    "layers": "Layer patterns.",
    "inputs": "What --input takes.",
    "weights": "What --weights takes.",
    "weight-files": "Files of weights, for commands that look into them.",
    "edits": "Operations of --edit and --grad-edit.",
    "hooks": "Kinds of custom hooks and their signatures.",
    "losses": "Losses, their formulas and targets.",
    "cam-methods": "Methods of 'hookscope cam' and their formulas.",
    "checks": "What 'hookscope check' finds.",
    "reductions": "Reductions of 'hookscope extract'.",
    "keys": "Names of tensors in result files.",
    "notebooks": "The magic %%hookscope of notebooks.",
    "settings": "Environment variables and settings files.",
}

EXAMPLE_SETTINGS = (
    "[tool.hookscope]",
    'model = "resnet50"',
    "[tool.hookscope.capture]",
    'layer = ["layer3.*", "fc"]',
    "shape = [1, 3, 224, 224]",
)


class TopicText(NamedTuple):
    """The content of a topic: paragraphs, and titled rows of terms and meanings."""

    paragraphs: tuple[str, ...]
    sections: Mapping[str, Rows]


def topic_text(name: str, ctx: click.Context) -> str:
    """Return the text of a topic, as wide as the help of ``ctx``."""
    formatter = ctx.make_formatter()
    formatter.write_text(TOPICS[name])
    content = _CONTENT[name]()
    for paragraph in content.paragraphs:
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(paragraph)
    for title, rows in content.sections.items():
        with formatter.section(title):
            formatter.write_dl(rows)
    return formatter.getvalue().rstrip("\n")


def _model_specs() -> TopicText:
    return TopicText(
        (
            "A model is given as an argument or with --model. The type of a file is detected from"
            " its content.",
        ),
        {
            "Model specs": [
                ("resnet18", "a torchvision model; 'hookscope models' lists the names"),
                (
                    "FILE.py:NAME",
                    "a class, a function that returns a model, or an instance in a Python file;"
                    " NAME is optional if the file defines one model",
                ),
                ('FILE.py:NAME(5, act="relu")', "the same with literal arguments"),
                (
                    "package.module:NAME",
                    "the same in a module that can be imported; needed if it uses relative imports",
                ),
                ("timm:NAME[.TAG]", "a timm model (requires timm)"),
                (
                    "hf:FOLDER or hf:NAME",
                    "a transformers model: a folder, its config.json, or a cached hub name"
                    " (requires transformers)",
                ),
                ("FILE.pt", "a model scripted or traced by TorchScript"),
                ("FILE.pt2", "a program saved by torch.export"),
                (
                    "FILE.onnx",
                    "an ONNX file, run by onnxruntime on the CPU, without gradients and edits"
                    " (requires onnx and onnxruntime)",
                ),
            ],
            "Arguments": [
                (
                    "--model-arg KEY=VALUE",
                    "passed to the class or function, and converted to the annotated type; without"
                    " an annotation, read as JSON or a Python literal, else passed as text",
                ),
            ],
        },
    )


def _layers() -> TopicText:
    return TopicText(
        (
            "A pattern is compared with the whole dotted name of a layer. 'hookscope tree MODEL'"
            " lists the names. Quote patterns, or the shell may expand them to names of files."
            " Several --layer options select all layers that match any of them.",
        ),
        {
            "Patterns": [
                ("layer3.0.conv1", "exactly this layer"),
                ("layer3.*", "* matches any characters, including dots"),
                ("*.conv?", "? matches one character"),
                ("layer[12]*", "one of the characters in brackets; [!12] any other"),
                ("{conv,bn}1", "either of two names"),
                ("!layer4.*", "exclude these layers"),
                ("h.3@-1, h.3@2-5", "positions of the sequence, counted in tokens (capture)"),
                ("'h.3@\" Paris\"'", "the positions of a token"),
                ("encoder.*@3x5, @cls", "a patch by row and column, and the class token"),
                (". or (model)", "the model itself"),
            ],
            "Other options": [
                ("--type Conv2d", "only layers of this class; patterns work too"),
                ("--depth N", "only names of at most N parts; 0 is the model itself"),
                ("--leaves", "only layers without children"),
            ],
        },
    )


def _inputs() -> TopicText:
    return TopicText(
        (
            "Without --input the model gets the result of example_input(), if its Python file"
            " defines it, else seeded noise. Several --input options make one batch.",
        ),
        {
            "Files": [
                ("cat.png", "an image, preprocessed as the weights require"),
                ("photos/ or 'photos/*.jpg'", "all images of a folder or a glob, as a batch"),
                ("-", "an image from standard input"),
                ("a.npy, a.npz, a.npz:KEY", "numpy arrays"),
                ("a.safetensors[:KEY]", "tensors; a result file works too"),
                ("a.pt[:KEY]", "a tensor, a tuple, a list or a dict saved by torch.save"),
                ("a.csv:0-3 or a.csv:A,B", "columns of a table, as float32"),
                ("args.json", "arguments by name or position"),
                ("story.txt", "text, for the model's tokenizer"),
                ("dog.wav, clip.mp4", "audio or video"),
            ],
            "Generated tensors": [
                ("random:1x3x64x64", "standard normal noise from --seed"),
                ("zeros:2x4, ones:2x4", "constants, as float32"),
                ("ints:1x16:0-1000", "integers from 0 to 999 from --seed"),
                ("text:WORDS", "text, for the model's tokenizer"),
                ("lines:FILE", "each line of a file as a text, a batch; lines:FILE:N is line N"),
            ],
            "Other forms": [
                ("FILE.py:FUNCTION", "the first batch of a function, a loader or a Dataset"),
                ("NAME=SPEC", "assign SPEC to the argument NAME of forward; 0=SPEC by position"),
            ],
        },
    )


def _weights() -> TopicText:
    return TopicText(
        (
            "Files are read without running code in them. A parameter that the file does not"
            " contain is an error, unless --partial is given.",
        ),
        {
            "Values of --weights": [
                ("random", "untrained, from --seed; the class names then mean nothing"),
                ("default", "the default pretrained weights, downloaded once"),
                ("IMAGENET1K_V2", "pretrained weights by name; 'hookscope models' lists the names"),
                ("FILE", "a .safetensors file, or a checkpoint saved by torch.save"),
                ("FOLDER", "weights in several files with an index, or one file of weights"),
            ],
            "Other options": [
                ("--rename OLD=NEW", "replace the prefix OLD by NEW in the keys of the file"),
                ("--rename OLD=", "remove a prefix; --rename =NEW adds one"),
                ("--partial", "load only the weights that match"),
            ],
        },
    )


def _weight_files() -> TopicText:
    return TopicText(
        (
            "A file of weights has tensors and no code of a model. The type of a file is detected"
            " from its content. No code of a file is run, and torch is not needed.",
        ),
        {
            "Files": [
                ("FILE.safetensors", "one file"),
                ("FOLDER", "files with an index or numbered ones, or the only file of weights"),
                ("model.safetensors.index.json", "the same by the index"),
                ("FILE.pth, .pt, .bin, .ckpt", "a file saved by torch.save, also a whole model"),
                ("FILE.npz, FILE.npy", "arrays of numpy"),
                ("FILE.gguf", "a GGUF file; quantised values need the extra gguf"),
            ],
            "Parts of a checkpoint": [
                ("FILE.pth#ema", "the part ema; without #, the weights of the model"),
                ("FILE.pth#optimizer", "the state of the optimizer"),
                ("FILE.pth#all", "all tensors of the file"),
            ],
        },
    )


def _edits() -> TopicText:
    from hookscope.specs.edit import GRADIENT_OPERATIONS, VALUE_OPERATIONS

    return TopicText(
        ("Edits are applied in the order given. Quote them for the shell.",),
        {
            "Targets": [
                ("GLOB=OP", "the output of every layer that matches"),
                ("relu:2=OP", "the output of the second call only"),
                ("h.3@-1=OP", "some positions only; see 'hookscope help layers'"),
                ("conv1[3,7,10-12]=OP", "some channels only, counted from 0"),
                ("input:GLOB=OP", "the input of the layer (--edit only)"),
            ],
            "Operations of --edit (x: activation)": [
                (entry.form, entry.formula) for entry in VALUE_OPERATIONS.values()
            ],
            "Operations of --grad-edit (g: gradient, x: activation)": [
                (entry.form, entry.formula) for entry in GRADIENT_OPERATIONS.values()
            ],
        },
    )


def _hooks() -> TopicText:
    return TopicText(
        (
            "--hook [GLOB=]FILE.py:FUNCTION, or package.module:FUNCTION, runs a function at the"
            " layers of GLOB, or at those that --layer selects. A result other than None replaces"
            " the value. --hook-kind is given once for all hooks, or once for each.",
            "--hook-arg KEY=VALUE fills the parameter KEY of each hook that has it.",
        ),
        {
            "Kinds of capture, grads and step": [
                ("forward", "hook(module, input, output); returns the output"),
                ("forward_pre", "hook(module, input); returns the input"),
            ],
            "Kinds of grads and step": [
                (
                    "backward",
                    "hook(module, grad_input, grad_output); returns the gradients at the inputs",
                ),
                (
                    "backward_pre",
                    "hook(module, grad_output); returns the gradients at the outputs",
                ),
                ("tensor", "hook(grad); returns the gradient at one output tensor"),
            ],
            "Kinds of step": [
                ("step_pre", "hook(optimizer, args, kwargs); runs before the optimizer step"),
                ("step_post", "hook(optimizer, args, kwargs); runs after it"),
            ],
        },
    )


def _losses() -> TopicText:
    from hookscope.specs.losses import FORMULAS

    rows = []
    for loss in FORMULAS.values():
        raw = f"; with --raw: {loss.raw_formula}" if loss.raw_formula != loss.formula else ""
        reduction = f" [{loss.reduction}]" if loss.reduction else ""
        rows.append((loss.name, f"{loss.formula}{reduction}{raw}"))
    return TopicText(
        (
            "The default reduction is in brackets: batchmean divides the sum by the batch size.",
            "--loss also takes FILE.py:FUNCTION, a function of the output, of output and target, or"
            " with parameters output, target and input.",
        ),
        {
            "Losses (x: output, t: target, c: classes, y: the target's class)": rows,
            "Values of --target": [
                ("3", "a class index"),
                ("3,7", "one index for each sample of a batch"),
                ("'tabby'", "a class name"),
                ("argmax", "the predicted class"),
                ("uniform", "the same probability for every class"),
                ("FILE", "a .npy, .safetensors or .pt file with one tensor"),
            ],
        },
    )


def _cam_methods() -> TopicText:
    from hookscope.specs.cam_methods import METHODS

    rows = [(method.name, f"{method.formula}; {method.paper}") for method in METHODS.values()]
    return TopicText(
        (
            "A is the layer's output with channels k, x the image with channels c, S the score of"
            " the class. G and g are the gradients of S at A and at x.",
        ),
        {"Methods": rows},
    )


def _checks() -> TopicText:
    from hookscope.specs.checks import CHECKS, RUN_CHECKS, WEIGHT_CHECKS, Check

    def row(check: Check) -> tuple[str, str]:
        options = f" (--{', --'.join(check.thresholds)})" if check.thresholds else ""
        return check.name, f"{check.finds}{options}{' (only if named)' if check.named else ''}"

    return TopicText(
        ("--only and --skip take these names.",),
        {
            "Checks": [row(check) for check in CHECKS.values()],
            "Checks of a training run": [row(check) for check in RUN_CHECKS.values()],
            "Checks of a file of weights": [row(check) for check in WEIGHT_CHECKS.values()],
        },
    )


def _reductions() -> TopicText:
    return TopicText(
        (
            "A reduction applies to each row of each layer. Append :space, :tokens or :all to"
            " choose the dimensions, such as max:all.",
        ),
        {
            "Values of --reduce": [
                ("mean, max", "the mean or maximum of each channel over all positions"),
                ("first, last", "the first or last token, without padding"),
                ("cls", "the first token, which of an image must be a class token"),
                ("flatten", "the whole row as a vector"),
                ("topk:K", "the K largest values, and their indices"),
                ("pca:K", "the first K principal components"),
                ("histogram", "counts of values in 99 bins"),
            ],
        },
    )


def _keys() -> TopicText:
    return TopicText(
        (
            "A tensor in a result file has the key LAYER[:CALL]/NAME. The first call has no number."
            " 'hookscope show FILE' lists the keys.",
            "A slice after a key selects a part, as in numpy: layer3.0/output[0,3]. Positions of"
            " tokens follow an @: h.3/output@-1.",
            "In a file of weights, a key is the name of a tensor, as layer1.0.conv1.weight, the"
            " name of a module that contains it, or a glob of either.",
        ),
        {
            "Keys": [
                ("conv1/output", "output of the layer in its first call"),
                ("layer3.0.relu:2/output", "output of its second call"),
                ("conv1/input.0", "first positional input; input.mask is a keyword argument"),
                ("lstm/output.1.0", "an entry of a nested output"),
                ("fc/output.grad", "gradient at the output"),
                ("fc/weight.grad", "gradient at a parameter"),
                ("fc/weight.update", "update of a parameter by 'hookscope step'"),
                ("fc/output.unedited", "value before an edit"),
                ("layer1.0/add", "result of a function called between modules (--ops)"),
                ("block.attn/attention", "attention weights (--attention)"),
                ("./output", "output of the model itself"),
            ],
        },
    )


def _notebooks() -> TopicText:
    return TopicText(
        (
            "%load_ext hookscope adds the magic. The first line of a cell is then %%hookscope MODE"
            " OPTIONS, with the options that 'hookscope run' has for the mode. The cell runs as"
            " without it, and the result is shown below it. Nothing is written without -o.",
        ),
        {
            "Modes": [
                ("%%hookscope list", "list the models that the cell calls"),
                ("%%hookscope capture --layer 'net.*'", "record the outputs of their layers"),
                ("%%hookscope check", "look for NaN, infinities and dead units"),
                ("%%hookscope trace", "list the calls of their layers in order"),
            ],
        },
    )


def _settings() -> TopicText:
    return TopicText(
        (
            "A value is taken from the first of: option, environment variable, project file, user"
            " file, default. 'hookscope config' shows every value and its source.",
            "The project file is hookscope.toml, or the table [tool.hookscope] of pyproject.toml,"
            " in this folder or above. 'hookscope config' prints the path of the user file. Keys"
            " are long option names, in a table such as [capture] for one command. At the top of a"
            " file, model, seed, device, quiet, verbose, json and color count for every command."
            " A project file may not set any model-arg, method, hook or hook-arg, or a model, input"
            " or loss that names Python code, nor name an address or a file outside its folder; a"
            " file named with --config may.",
            "A complete example for pyproject.toml:",
            "\b\n" + "\n".join(EXAMPLE_SETTINGS),
            "Only the command line sets --version, --help and -h. No file sets"
            " config, no-config or trust, and no project file sets force.",
        ),
        {
            "Environment variables": [
                (
                    "HOOKSCOPE_<COMMAND>_<OPTION>",
                    "one option of one command: HOOKSCOPE_CAPTURE_MAX_BYTES=2GB; several values are"
                    " separated by spaces, those of --input by the separator of PATH",
                ),
                (
                    "HOOKSCOPE_<OPTION>",
                    "for every command: MODEL, SEED, DEVICE, QUIET, VERBOSE, JSON, COLOR, CONFIG,"
                    " NO_CONFIG",
                ),
                ("HOOKSCOPE_DEBUG=1", "show tracebacks"),
                ("NO_COLOR, FORCE_COLOR", "disable or force colour"),
            ],
        },
    )


_CONTENT: Mapping[str, Callable[[], TopicText]] = {
    "model-specs": _model_specs,
    "layers": _layers,
    "inputs": _inputs,
    "weights": _weights,
    "weight-files": _weight_files,
    "edits": _edits,
    "hooks": _hooks,
    "losses": _losses,
    "cam-methods": _cam_methods,
    "checks": _checks,
    "reductions": _reductions,
    "keys": _keys,
    "notebooks": _notebooks,
    "settings": _settings,
}
