"""Read what each layer of a language model would predict: the logit lens."""

from __future__ import annotations

from typing import Annotated

from hookscope.api.public import PLAIN_RUN, REQUIRED, public
from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.isolation import disable_mha_fast_path
from hookscope.execution.prepare import prepare
from hookscope.execution.provenance import describe_run
from hookscope.model_analysis.lens import run_lens
from hookscope.results.lens import Lens
from hookscope.specs.command_options import LensOptions
from hookscope.specs.request import InputRequest, LayerSelection, ModelRequest, Request
from hookscope.specs.run_options import RunOptions
from hookscope.tensors.grad_mode import grad_mode


@public
def lens(
    options: LensOptions,
    layers: LayerSelection,
    input: InputRequest,
    model: Annotated[ModelRequest, REQUIRED],
    run: Annotated[RunOptions, PLAIN_RUN],
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
    request = Request("lens", model, layers, input, run)
    prepared = prepare(request)
    chosen = () if request.layers.everything and not layers.leaves else prepared.layers
    # The fast path of transformers skips layers.
    with grad_mode(False), disable_mha_fast_path(), explain_forward_errors(prepared):
        metadata = describe_run("lens", prepared, request.chosen(options))
        return run_lens(prepared, chosen, options, metadata)
