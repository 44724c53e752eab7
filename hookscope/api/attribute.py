"""Attribute the score of a target to the tokens of the input."""

from __future__ import annotations

from typing import Annotated

from hookscope.api.public import PLAIN_RUN, REQUIRED, public
from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.prepare import prepare
from hookscope.execution.provenance import describe_run
from hookscope.files.progress import Progress
from hookscope.model_analysis.attribution import run_attribution
from hookscope.results.attribution import Attribution
from hookscope.specs.attribution_options import AttributeOptions
from hookscope.specs.request import InputRequest, LayerSelection, ModelRequest, Request
from hookscope.specs.run_options import RunOptions


@public
def attribute(
    options: AttributeOptions,
    input: InputRequest,
    model: Annotated[ModelRequest, REQUIRED],
    run: Annotated[RunOptions, PLAIN_RUN],
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
    request = Request("attribute", model, LayerSelection(), input, run)
    prepared = prepare(request)
    with explain_forward_errors(prepared):
        metadata = describe_run("attribute", prepared, request.chosen(options))
        return run_attribution(prepared, options, metadata, progress)
