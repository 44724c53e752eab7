"""Write down what the layers of a model compute, in a text file that is small enough to commit."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import click

from hookscope.cli import options
from hookscope.cli.commands import Example
from hookscope.cli.global_options import command, table_options
from hookscope.cli.output_file import Output, only
from hookscope.cli.runner import run_analysis
from hookscope.files.output_path import FINGERPRINT
from hookscope.specs.public import PLAIN_RUN, public
from hookscope.specs.request import InputRequest, ModelRequest, Request
from hookscope.specs.run_options import RunOptions

if TYPE_CHECKING:
    from hookscope.results.fingerprint import ModelFingerprint


@public
def fingerprint(
    input: InputRequest,
    model: ModelRequest,
    run: Annotated[RunOptions, PLAIN_RUN],
    request: Request,
) -> ModelFingerprint:
    """Return what the layers of a model compute, in a few hundred bytes for each.

    The model runs three times: as it is, as a copy in float64, and with another number of threads
    and other kernels. The distances of the other two runs are the rounding of a layer, by which
    ``diff`` tells a change of the model from another machine or release. Where a model does not run
    in float64 or with other kernels, that run is left out.

    Returns:
        The fingerprint; ``save`` writes it, and ``diff`` compares it with a model or another one.

    Raises:
        ModelError, InputError: a spec or a file is wrong.
        ForwardError: the model raised.

    Example:
        >>> import hookscope
        >>> found = hookscope.fingerprint("resnet18", shape=(1, 3, 64, 64))
        >>> found["fc/output"].shape, found["fc/output"].rounding < 1e-5
        ((1, 1000), True)
    """
    from hookscope.execution.prepare import prepare
    from hookscope.execution.provenance import describe_run
    from hookscope.model_analysis.fingerprint_rounding import make_fingerprint

    prepared = prepare(request)
    chosen = request.chosen()
    if specs := _specs(input.input):
        chosen["input"] = specs
    return make_fingerprint(prepared, describe_run("fingerprint", prepared, chosen))


def _specs(given: Any) -> list[str]:
    """The specs of the input, by which ``diff`` builds it again."""
    several = given if isinstance(given, list | tuple) else [given]
    texts = [os.fspath(one) for one in several if isinstance(one, str | os.PathLike)]
    return texts if len(texts) == len(several) else []


EXAMPLES = (
    Example(
        "hookscope fingerprint sample_models/digits.py:trained -o digits.fp",
        "Write digits.fp, with a line for each layer.",
    ),
    Example(
        "hookscope fingerprint resnet18 --shape 1x3x64x64 -o net.fp",
        "Then compare: hookscope diff resnet18 net.fp",
    ),
)
OUTPUT = Output(
    "Text file to write, .fp. Default: MODEL.fp.", only(FINGERPRINT), FINGERPRINT, optional=True
)


@command(
    "fingerprint",
    options.model,
    options.inputs,
    options.texts,
    options.run,
    OUTPUT.options,
    table_options,
    views="fingerprint",
    examples=EXAMPLES,
    main="input shape weights model-arg output no-output",
    topics="model-specs inputs weights",
)
def fingerprint_command(ctx: click.Context, **values: Any) -> None:
    """Write what the layers of a model compute to a small text file.

    The file has a line for each layer: shape, moments, extremes, how much of the output is
    rounding, a hash, and 64 random projections. It is made to be committed. 'hookscope diff MODEL
    FILE.fp' names the first layer that computes something else, on another machine too.

    A test of pytest does both with the fixture hookscope_golden: hookscope_golden(model, batch)
    compares the model with a file beside the test, which 'pytest --hookscope-update' writes.
    """
    run_analysis(ctx, fingerprint, values, OUTPUT)
