"""Attribute the score of a target to the tokens of the input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import click

from hookscope.cli import options
from hookscope.cli.commands import Example
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import command, table_options
from hookscope.cli.output_file import ANALYSIS
from hookscope.cli.runner import run_analysis
from hookscope.files.progress_types import Progress
from hookscope.specs.attribution_options import AttributeOptions
from hookscope.specs.public import PLAIN_RUN, REQUIRED, public
from hookscope.specs.request import InputRequest, ModelRequest, Request
from hookscope.specs.run_options import RunOptions

if TYPE_CHECKING:
    from hookscope.results.attribution import Attribution


@public
def attribute(
    options: AttributeOptions,
    input: InputRequest,
    model: Annotated[ModelRequest, REQUIRED],
    run: Annotated[RunOptions, PLAIN_RUN],
    request: Request,
    *,
    progress: Progress | None = None,
) -> Attribution:
    """Attribute the logit of a next token, or of a class, to the tokens of the input.

    The input that is differentiated or replaced is the output of the module that embeds the token
    ids. The attribution of a token is summed over the width. Padding has none. For images, see
    ``cam``.

    Args:
        progress: called with the number of runs done and the total, by ``integrated`` and
            ``occlusion``.

    Returns:
        The tokens of each text with their attributions; the score, that of the baseline, and the
        sum of the attributions.

    Raises:
        RequestError: no module embeds the tokens, the model returns no logits, the target is out of
            range, or the score has no gradient.
        InputError: the input has no token ids, or the target is not one token.
        ForwardError: the model raised.

    Example:
        >>> import torch, hookscope
        >>> net = torch.nn.Sequential(torch.nn.Embedding(20, 8), torch.nn.Linear(8, 20))
        >>> found = hookscope.attribute(net, input=torch.tensor([[3, 1, 4]]), by="occlusion")
        >>> [one.score for one in found.rows[0].tokens[:2]]  # it reads the last token alone
        [0.0, 0.0]
        >>> found.rows[0].total == found.rows[0].difference
        True
    """
    from hookscope.execution.failures.failure_explanation import explain_forward_errors
    from hookscope.execution.prepare import prepare
    from hookscope.execution.provenance import describe_run
    from hookscope.model_analysis.attribution import run_attribution

    prepared = prepare(request)
    with explain_forward_errors(prepared):
        metadata = describe_run("attribute", prepared, request.chosen(options))
        return run_attribution(prepared, options, metadata, progress)


EXAMPLES = (
    Example(
        'hookscope attribute hf:sample_models/capitals -i "text:the capital of Peru"',
        "The tokens that a prediction depends on.",
    ),
    Example(
        "hookscope attribute hf:sample_models/capitals -i text:Peru --by gradxinput",
        "The same by gradient times input.",
    ),
    Example(
        'hookscope attribute hf:sample_models/capitals -i "text:the capital of France is"'
        ' --target " Paris" --baseline " warm"',
        "The tokens that a language model predicts the next word from.",
    ),
    Example(
        'hookscope attribute hf:sample_models/capitals -i "text:the capital of France is"'
        ' --target " Paris" --against " Rome" --by occlusion -o attribution.html',
        "Why one word and not another, as a page.",
    ),
    Example(
        'hookscope attribute hf:sample_models/capitals -i "text:the capital of Peru is"'
        " --by rollout -o attribution.png",
        "Attention rollout, as a picture.",
    ),
)


@command(
    "attribute",
    options.text_model,
    options_of(AttributeOptions),
    options.inputs,
    options.texts,
    options.run,
    ANALYSIS.options,
    table_options,
    views="attribution",
    examples=EXAMPLES,
    main="by target against baseline input model-arg output no-output",
    topics="model-specs inputs weights",
)
def attribute_command(ctx: click.Context, **values: Any) -> None:
    """Show what each token of the input contributes to a prediction.

    The score is the logit of the next token after the text, or of a class. It is distributed over
    the tokens of the input by gradients at their embeddings, by leaving out one token at a time, or
    by attention weights. The sum is compared with the difference of the scores of the input and of
    the baseline. For images, use hookscope cam.
    """
    run_analysis(ctx, attribute, values, ANALYSIS, "running")
