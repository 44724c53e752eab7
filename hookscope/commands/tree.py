"""The named-module tree of a model, or the tree of the tensors in a file of weights."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal, overload

import click
from click.core import ParameterSource

from hookscope.cli import completion_values, options
from hookscope.cli.commands import Example, command, flag
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import global_options, row_options
from hookscope.cli.run_context import reading, recorded_notes, running, show_logs
from hookscope.commands.public import Given, Only, public
from hookscope.errors import RequestError
from hookscope.files.progress import Progress
from hookscope.specs.choices import DEFAULT_MODEL
from hookscope.specs.patterns import as_texts
from hookscope.specs.request import InputRequest, LayerSelection, ModelRequest, Request
from hookscope.specs.weight_options import (
    TREE_WEIGHT_OPTIONS,
    TreeOptions,
    check_hash_options,
    check_model_options,
)

if TYPE_CHECKING:
    from hookscope.results.module_tree import ModuleTree
    from hookscope.stores.weights.weight_set import WeightSet
    from hookscope.stores.weights.weight_tree import WeightHashes, WeightTree

if TYPE_CHECKING:
    import torch

    from hookscope.results.module_tree import ModuleTree
    from hookscope.stores.weights.weight_tree import WeightHashes

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
    layers: Given[LayerSelection],
    options: TreeOptions,
    input: Annotated[InputRequest, Only("shape")],
    loading: Annotated[
        Given[ModelRequest],
        Only("model_args", "method", "attn", "trust", "onnx_optimize", "adapter"),
    ],
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
        >>> [(node.name, node.parameters) for node in tree.nodes]
        [('.', 9930), ('conv1', 160), ('conv2', 4640), ('fc', 5130)]
    """
    from hookscope.commands.weight_source import as_weights, label_of_weights
    from hookscope.stores.weights.weight_tree import WeightTree

    shown = {"shapes": options.shapes, "shape": input.shape}
    chosen = [*layers.chosen, *(name for name in shown if shown[name]), *loading.chosen]
    if options.hash:
        check_hash_options(chosen)
    if label := label_of_weights(model):
        check_model_options(chosen, TREE_WEIGHT_OPTIONS, label)
    weights = as_weights(model, loading["trust"])
    if weights is not None:
        if not options.hash:
            return WeightTree.of(
                weights, as_texts(layers["layers"]), **layers.part("depth", "leaves")
            )
        from hookscope.stores.weights.weight_tree import hash_weights

        return hash_weights(weights, progress)
    request = Request("tree", loading.make(model=model), layers.make(), input)
    from hookscope.model_analysis.model_tree import describe_request, initial_weights

    if options.hash:
        from hookscope.stores.weights.weight_tree import hash_weights

        return hash_weights(initial_weights(request), progress)
    return describe_request(request, options.shapes)


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
    options_of(TreeOptions, "shapes"),
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
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    main="layer model-arg type depth leaves shapes shape",
    topics="model-specs layers weight-files",
)
def tree_command(ctx: click.Context, mermaid: bool, dot: bool, cache: bool, **values: Any) -> None:
    """Show the layers of a model, or the tensors in a file of weights.

    Each line shows the name that --layer takes, the type with its arguments, the number of own and
    total parameters, and whether they are trainable. A shared module is listed once, with its other
    names. --shapes uses a pass without values (on the meta device) where possible.

    Of weights (.safetensors, .pth, .pt, .bin, .npz, .gguf, or a folder or an index of several),
    each line shows a part of a name with the dtype, shape, parameters and bytes of its tensors;
    only headers are read, and no code of a file is run. FILE.pth#PART is a part of a checkpoint.

    In a graph, arrows lead from a module to the modules inside it; with --shapes, boxes show what
    is inside a module, and arrows the order in which modules first ran.

    --hash prints a line that is equal for equal architectures (names and shapes), and one that is
    equal for equal weights, in whatever format they are saved.
    """
    console: Console = ctx.obj
    from hookscope.stores.weights.open_weights import is_weights

    forms = {"--json": console.json, "--mermaid": mermaid, "--dot": dot}
    chosen = [name for name, is_chosen in forms.items() if is_chosen]
    if len(chosen) > 1:
        raise RequestError(f"{' and '.join(chosen)} cannot be combined.", "Choose one of them.")
    if is_weights(values["model"]):
        _show_weights(ctx, values)
        return
    from hookscope.cli.request_builder import build_request

    build_request("tree", values)
    options.note_model_source(ctx)
    if values["hash"]:
        if mermaid or dot:
            raise RequestError(f"{chosen[0]} and --hash cannot be combined.", "Choose one of them.")
        with running(console, f"Hashing {values['model']} ..."), console.bar("Hashing") as advance:
            result = tree(**values, progress=advance)
        _print_hashes(console, result)
        return
    result = _module_tree(console, values, cache)
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


def _module_tree(console: Console, values: dict[str, Any], cache: bool) -> ModuleTree:
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
        result: ModuleTree = tree(**values)
    # The key again: a file that was changed during the run must not be stored as it was before.
    if key and key == tree_key(spec, values, interpreter):
        write_tree(key, StoredTree(result, tuple(notes)))
    return result


def _show_weights(ctx: click.Context, values: dict[str, Any]) -> None:
    """Show weights, without torch and without numpy unless values are needed."""
    console: Console = ctx.obj
    names = (*values, "mermaid", "dot")
    typed = [x for x in names if ctx.get_parameter_source(x) is ParameterSource.COMMANDLINE]
    chosen = [name for name in typed if name != "model"]
    check_model_options(chosen, TREE_WEIGHT_OPTIONS, values["model"])
    if values["hash"]:
        check_hash_options(typed)
    kept = {name: values[name] for name in ("model", *TREE_WEIGHT_OPTIONS)}
    with _without_collection():
        with ExitStack() as stack:
            step = f"Reading {values['model']} ..."
            stack.enter_context(reading(console, step, kept["trust"]))
            if kept["hash"]:
                kept["progress"] = stack.enter_context(console.bar("Hashing"))
            result = tree(**kept)
        if kept["hash"]:
            _print_hashes(console, result)
            return
        # Not console.show: it knows every result, and importing all of them needs numpy.
        from hookscope.views.weight_tree import weight_tree_document, weight_tree_lines

        if console.json:
            console.document(weight_tree_document(result))
        else:
            console.result(weight_tree_lines(result, console.text_options))


@contextmanager
def _without_collection() -> Iterator[None]:
    """Thousands of names are many objects, and looking for garbage is a fifth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _print_hashes(console: Console, hashes: WeightHashes) -> None:
    if console.sort or console.top:
        raise RequestError("--sort and --top are for tables.", "Leave them out with --hash.")
    console.show(hashes)


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
