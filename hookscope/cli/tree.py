"""``hookscope tree``: the named-module tree of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hookscope.cli import completion_values, input_options, options
from hookscope.cli.commands import Example, command, flag
from hookscope.cli.console import Console
from hookscope.cli.global_options import global_options
from hookscope.cli.run_context import running
from hookscope.cli.table_options import row_options
from hookscope.errors import RequestError

if TYPE_CHECKING:
    from hookscope.results.module_tree import ModuleTree

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
)


@command(
    "tree",
    options.model,
    options.layers,
    options.shapes,
    input_options.shape,
    flag("mermaid", section="Output", help="Print the modules as a graph for Mermaid."),
    flag("dot", section="Output", help="Print the modules as a graph for Graphviz (DOT)."),
    row_options,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    main="layer type depth leaves shapes shape",
    topics="model-specs layers",
)
def tree(ctx: click.Context, mermaid: bool, dot: bool, **values: Any) -> None:
    """Show the layers of a model.

    Each line shows the name that --layer takes, the type with its arguments, the number of own and
    total parameters, and whether they are trainable. A shared module is listed once, with its other
    names. --shapes uses a pass without values (on the meta device) where possible.

    In a graph, arrows lead from a module to the modules inside it; with --shapes, boxes show what
    is inside a module, and arrows the order in which modules first ran.
    """
    console: Console = ctx.obj
    from hookscope.cli.request_builder import build_request

    forms = {"--json": console.json, "--mermaid": mermaid, "--dot": dot}
    chosen = [name for name, is_chosen in forms.items() if is_chosen]
    if len(chosen) > 1:
        raise RequestError(f"{' and '.join(chosen)} cannot be combined.", "Choose one of them.")
    build_request("tree", values)
    options.note_model_source(ctx)
    with running(console, f"Reading {values['model']} ..."):
        from hookscope.api.tree import tree as api_tree

        result = api_tree(**values)
    complete = len(result.nodes) > 1 and not any(
        values[name] for name in ("layers", "types", "leaves", "depth")
    )
    completion_values.remember_layers(
        values["model"], [(node.name, node.type) for node in result.nodes], complete
    )
    if mermaid or dot:
        _print_graph(console, result, mermaid)
    else:
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
