"""Read what each layer of a language model would predict: the logit lens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import click

from hookscope.cli import options
from hookscope.cli.commands import Example
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import command, table_options
from hookscope.cli.output_file import ANALYSIS
from hookscope.cli.runner import run_analysis
from hookscope.specs.command_options import LensOptions
from hookscope.specs.public import PLAIN_RUN, REQUIRED, public
from hookscope.specs.request import InputRequest, LayerSelection, ModelRequest, Request
from hookscope.specs.run_options import RunOptions

if TYPE_CHECKING:
    from hookscope.results.lens import Lens


@public
def lens(
    options: LensOptions,
    layers: LayerSelection,
    input: InputRequest,
    model: Annotated[ModelRequest, REQUIRED],
    run: Annotated[RunOptions, PLAIN_RUN],
    request: Request,
) -> Lens:
    """Read what each layer predicts at each position, by the final norm and the unembedding.

    The logits of a layer are ``head(norm(x))`` with its output ``x``: the logit lens. The model
    runs once.

    Returns:
        The cells by layer, text and position; padding has none.

    Raises:
        LayerError: there is no such layer, or it does not fit the norm or the head.
        RequestError: the model returns no logits, the blocks or the head cannot be found, or the
            target is out of range.
        InputError: the target is not one token, or the input does not fit.
        ForwardError: the model raised.

    Example:
        >>> import torch, hookscope
        >>> block = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
        >>> head = torch.nn.Linear(8, 20)
        >>> net = torch.nn.Sequential(torch.nn.Embedding(20, 8), block, head)
        >>> found = hookscope.lens(net, layers=["1"], input=torch.tensor([[3, 1, 4]]))
        >>> found.head, len(found.cells), found.cell("1").rank
        ('2', 3, 1)
    """
    from hookscope.execution.failures.failure_explanation import explain_forward_errors
    from hookscope.execution.isolation import disable_mha_fast_path
    from hookscope.execution.prepare import prepare
    from hookscope.execution.provenance import describe_run
    from hookscope.model_analysis.lens import run_lens
    from hookscope.tensors.grad_mode import grad_mode

    prepared = prepare(request)
    chosen = () if request.layers.everything and not layers.leaves else prepared.layers
    # The fast path of transformers skips layers.
    with grad_mode(False), disable_mha_fast_path(), explain_forward_errors(prepared):
        metadata = describe_run("lens", prepared, request.chosen(options))
        return run_lens(prepared, chosen, options, metadata)


EXAMPLES = (
    Example(
        'hookscope lens hf:sample_models/capitals -i "text:the capital of Peru is"',
        "The layer at which a small language model knows the next word.",
    ),
    Example(
        'hookscope lens hf:sample_models/capitals -i "text:the capital of" -o lens.png',
        "The same as a picture.",
    ),
    Example(
        'hookscope lens hf:sample_models/capitals -i "text:the capital of France is"'
        ' --target " Paris" --layer model.layers.1 --layer model.layers.3',
        "Two layers, with the rank of one token.",
    ),
)


@command(
    "lens",
    options.text_model,
    options_of(LensOptions, "target", "norm", "head"),
    options.layers_by_default("the blocks of the model"),
    options.inputs,
    options.texts,
    options.run,
    ANALYSIS.options,
    table_options,
    views="lens",
    examples=EXAMPLES,
    main="layer target input model-arg output no-output",
    topics="model-specs layers inputs weights",
)
def lens_command(ctx: click.Context, **values: Any) -> None:
    """Show what each layer of a language model would predict.

    This is the logit lens: it applies the model's final norm and its unembedding to the output of
    every block, or of the layers that --layer selects, at every position, and shows the most
    probable next token. The last position is shown in figures: the rank and probability of a
    target, and the divergence from the prediction of the whole model.
    """
    run_analysis(ctx, lens, values, ANALYSIS)
