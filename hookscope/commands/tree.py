"""The named-module tree of a model, or the tree of the tensors in a file of weights."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, overload

import click

from hookscope.cli import completion_values, options
from hookscope.cli.commands import Example, flag
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import command, row_options
from hookscope.cli.run_context import recorded_notes, running, show_logs
from hookscope.cli.runner import checked_job, job_step
from hookscope.commands.subject import as_weights, find_subject
from hookscope.errors import RequestError
from hookscope.files.garbage import without_collection
from hookscope.files.progress_types import Progress
from hookscope.specs.choices import DEFAULT_MODEL
from hookscope.specs.patterns import as_texts
from hookscope.specs.public import Checked, Only, Without, handles, public
from hookscope.specs.request import (
    WEIGHTS_OPTIONS,
    InputRequest,
    LayerSelection,
    ModelRequest,
    Request,
    chosen_options,
)
from hookscope.specs.subject_kinds import WEIGHTS
from hookscope.specs.weight_options import TreeOptions, WeightTrust, check_hash_options

if TYPE_CHECKING:
    import torch

    from hookscope.results.module_tree import ModuleTree
    from hookscope.stores.weights.weight_set import WeightSet
    from hookscope.stores.weights.weight_tree import WeightHashes, WeightTree

    Module = torch.nn.Module | torch.export.ExportedProgram


@overload
def tree(
    model: str | os.PathLike[str] | WeightSet | Module = ...,
    *,
    hash: Literal[True],
    **options: Any,
) -> WeightHashes: ...
@overload
def tree(model: WeightSet, *, hash: Literal[False] = False, **options: Any) -> WeightTree: ...
@overload
def tree(model: Module, *, hash: Literal[False] = False, **options: Any) -> ModuleTree: ...
@overload
def tree(
    model: str | os.PathLike[str] = ...,
    *,
    hash: Literal[False] = False,
    **options: Any,
) -> ModuleTree | WeightTree: ...
@overload
def tree(
    model: str | os.PathLike[str] | WeightSet | Module = ...,
    *,
    hash: bool,
    **options: Any,
) -> ModuleTree | WeightTree | WeightHashes: ...
@public
def tree(
    model: (
        str | os.PathLike[str] | WeightSet | torch.nn.Module | torch.export.ExportedProgram
    ) = DEFAULT_MODEL,
    *,
    layers: LayerSelection,
    options: TreeOptions,
    input: Annotated[InputRequest, Only("shape")],
    loading: Annotated[ModelRequest, Without(*WEIGHTS_OPTIONS)],
    request: Request,
    progress: Progress | None = None,
) -> ModuleTree | WeightTree | WeightHashes:
    """Return the named-module tree of a model, or the tree of the tensors in a file of weights.

    Args:
        model: the spec of a model, or a module; or weights: a file, a folder or an index of
            several, a part of a checkpoint (``file.pth#ema``), or the result of ``load``.
        layers: layer patterns; none means all. A leading ``!`` excludes. For weights, patterns of
            the names of tensors, or of what they begin with.
        depth: the maximum number of parts of a name; 0 is the model itself.
        leaves: leaf modules only; of weights, tensors only.
        shape: shape of the input for that pass.
        trust: open an exported program (.pt2) even if it carries pickles that run code; of a
            pickled model, build it, which runs code, and take its state dict.
        progress: called with the bytes hashed and the total.

    Returns:
        A ``ModuleTree``; for weights, a ``WeightTree``; with ``hash``, ``WeightHashes``. Files of
        weights are read without torch, unless ``trust`` is given.

    Raises:
        ModelError: no such model.
        RequestError: a live model, or weights, are given with an option for models given by name;
            or there is no such part of a checkpoint.
        LayerError: a pattern matches nothing.
        WeightsFileError: a file of weights is damaged.
        ForwardError: the pass for ``shapes`` failed; its ``tree`` has the modules that ran before.

    Example:
        >>> import hookscope
        >>> tree = hookscope.tree("resnet18", layers=["layer1.0.*"], types=["Conv2d"])
        >>> [(node.name, node.parameters) for node in tree.modules]
        [('layer1.0.conv1', 36864), ('layer1.0.conv2', 36864)]
        >>> tree = hookscope.tree("sample_models/digits.safetensors", depth=1)
        >>> [(node.name, node.parameters) for node in tree.modules]
        [('.', 9930), ('conv1', 160), ('conv2', 4640), ('fc', 5130)]
    """
    from hookscope.model_analysis.model_tree import describe_request, initial_weights

    if options.hash:
        from hookscope.stores.weights.weight_tree import hash_weights

        return hash_weights(initial_weights(request), progress)
    return describe_request(request, options)


tree.find_subject = find_subject  # type: ignore[attr-defined]


@handles(tree, WEIGHTS)
def tree_of_weights(
    model: str | os.PathLike[str] | WeightSet,
    *,
    layers: Annotated[LayerSelection, Only("layers", "depth", "leaves")],
    pickled: WeightTrust,
    options: Annotated[TreeOptions, Only("hash")],
    progress: Progress | None = None,
) -> WeightTree | WeightHashes:
    """Return the tree of names of weights, or their hashes."""
    from hookscope.stores.weights.weight_tree import WeightTree, hash_weights

    if options.hash:  # before the file is opened, which may run code
        check_hash_options(chosen_options(layers))
    weights = cast("WeightSet", as_weights(model, pickled.trust))
    if options.hash:
        return hash_weights(weights, progress)
    return WeightTree.of(weights, as_texts(layers.layers), layers.depth, layers.leaves)


EXAMPLES = (
    Example("hookscope tree resnet18", "All layers, by the names that --layer takes."),
    Example(
        "hookscope tree resnet18 --type Conv2d --shapes", "Convolutions and their output shapes."
    ),
    Example("hookscope tree vit_h_14 --depth 2", "A large model, without memory for its weights."),
    Example(
        "hookscope tree resnet18 --depth 2 --shapes --mermaid",
        "A graph for Markdown: boxes, and arrows in execution order.",
    ),
    Example(
        "hookscope tree resnet18 --receptive --depth 1",
        "How much of the input a unit of each layer depends on.",
    ),
    Example("hookscope tree sample_models/digits.py:trained", "A model from a Python file."),
    Example("hookscope tree sample_models/digits_scripted.pt -v", "A scripted file."),
    Example("hookscope tree sample_models/digits.safetensors", "The tensors in a file of weights."),
    Example(
        "hookscope tree sample_models/digits.safetensors --hash",
        "Two lines to compare: of names and shapes, and of all weights.",
    ),
    Example("hookscope tree sample_models/digits.onnx --shapes", "An ONNX file."),
)


@command(
    "tree",
    options.model,
    options.layers,
    options_of(TreeOptions, "shapes", "receptive"),
    options.shape,
    flag("mermaid", section="Output", help="Print the modules as a graph for Mermaid."),
    flag("dot", section="Output", help="Print the modules as a graph for Graphviz (DOT)."),
    options_of(TreeOptions, "hash"),
    flag(
        "cache",
        section="Output",
        default=True,
        help="Reuse the tree of an earlier run if nothing has changed. Default: on.",
    ),
    row_options,
    views="module_tree weight_tree",
    examples=EXAMPLES,
    main="layer model-arg type depth leaves shapes shape",
    also="dot hash mermaid receptive",
    topics="model-specs layers weight-files",
)
def tree_command(ctx: click.Context, mermaid: bool, dot: bool, cache: bool, **values: Any) -> None:
    """Show the layers of a model, or the tensors in a file of weights.

    Each line shows the name that --layer takes, the type with its arguments, the number of own and
    total parameters, and whether they are trainable. A shared module is listed once, with its other
    names. --shapes and --receptive use a pass without values (on the meta device) where possible.

    Of weights (.safetensors, .pth, .pt, .bin, .npz, .gguf, or a folder or an index of several),
    each line shows a part of a name with the dtype, shape, parameters and bytes of its tensors;
    only headers are read, and no code of a file is run. FILE.pth#PART is a part of a checkpoint.

    In a graph, arrows lead from a module to the modules inside it; with --shapes, boxes show what
    is inside a module, and arrows the order in which modules first ran.

    --hash prints a line that is equal for equal architectures (names and shapes), and one that is
    equal for equal weights, in whatever format they are saved.
    """
    console: Console = ctx.obj
    forms = {"--json": console.json, "--mermaid": mermaid, "--dot": dot, "--hash": values["hash"]}
    chosen = [name for name, is_chosen in forms.items() if is_chosen]
    if len(chosen) > 1 and chosen != ["--json", "--hash"]:
        raise RequestError(f"{' and '.join(chosen)} cannot be combined.", "Choose one of them.")
    graphs = {"mermaid": mermaid, "dot": dot}
    job = checked_job(ctx, tree, values | graphs)
    if job.kind == WEIGHTS:
        _show_names(console, job, values["model"])
        return
    options.note_model_source(ctx)
    if values["hash"]:
        _show_names(console, job, values["model"])
        return
    result = _module_tree(console, job, values, cache)
    complete = len(result.modules) > 1 and not any(
        values[name] for name in ("layers", "types", "leaves", "depth")
    )
    completion_values.remember_layers(
        values["model"], [(node.name, node.type) for node in result.modules], complete
    )
    if mermaid or dot:
        _print_graph(console, result, mermaid)
        return
    console.show(result)


def _module_tree(console: Console, job: Checked, values: dict[str, Any], cache: bool) -> ModuleTree:
    """Return the tree that an earlier run stored, without torch, or else compute and store it."""
    key = None
    if cache and not console.verbose:
        from hookscope.specs.model_spec import parse_model
        from hookscope.stores.tree_cache import (
            StoredTree,
            interpreter_state,
            read_tree,
            tree_key,
            write_tree,
        )

        spec, interpreter = parse_model(values["model"]), interpreter_state()
        key = tree_key(spec, values, interpreter)
        stored = read_tree(key) if key else None
        if stored:
            show_logs(console)
            for level, text in stored.notes:
                logging.getLogger("hookscope").log(level, "%s", text)
            return stored.tree
    with running(console, f"Reading {values['model']} ..."), recorded_notes() as notes:
        result: ModuleTree = job()
    # The key again: a file that was changed during the run must not be stored as it was before.
    if key and key == tree_key(spec, values, interpreter):
        write_tree(key, StoredTree(result, tuple(notes)))
    return result


def _show_names(console: Console, job: Checked, model: str) -> None:
    """Show the tree of names of weights, or the hashes of weights or of a model."""
    hashes = job.values["options"].hash
    if hashes and (console.sort or console.top):
        raise RequestError("--sort and --top are for tables.", "Leave them out with --hash.")
    verb = "Hashing" if hashes else "Reading"
    with without_collection():  # thousands of names are many objects
        with job_step(console, job, f"{verb} {model} ...", verb) as progress:
            result = job(**progress)
        console.show(result)


def _print_graph(console: Console, tree: ModuleTree, mermaid: bool) -> None:
    from hookscope.views.text import module_graph

    if not mermaid:
        console.text(module_graph.dot_text(tree, console.ascii))
        return
    text = module_graph.mermaid_text(tree, console.ascii)
    console.text(text)
    arrows = text.count(" --> ")
    if arrows > module_graph.MERMAID_ARROWS or len(text) > module_graph.MERMAID_CHARACTERS:
        console.warning(
            f"Mermaid draws up to {module_graph.MERMAID_ARROWS} arrows and"
            f" {module_graph.MERMAID_CHARACTERS:,} characters unless it is configured for more;"
            f" this graph has {arrows} and {len(text):,}. Choose fewer layers, as with --depth."
        )
