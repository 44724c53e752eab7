"""Run a model once and record the inputs and outputs of its layers."""

from __future__ import annotations

import functools
import os
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import click

from hookscope.cli import options
from hookscope.cli.commands import Example
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import command, table_options
from hookscope.cli.output_file import RECORDING
from hookscope.cli.runner import run_recording
from hookscope.commands.subject import find_subject
from hookscope.errors import CheckFailed, RequestError
from hookscope.files.output_path import names_folder
from hookscope.specs.command_options import CaptureOptions
from hookscope.specs.intervention_spec import Interventions
from hookscope.specs.onnx_limits import check_onnx_ops
from hookscope.specs.patterns import as_texts
from hookscope.specs.public import Only, handles, public
from hookscope.specs.request import (
    InputRequest,
    LayerSelection,
    ModelRequest,
    Request,
)
from hookscope.specs.run_options import RunOptions
from hookscope.specs.subject_kinds import RUNS
from hookscope.specs.tensor_key import ATTENTION, OP

if TYPE_CHECKING:
    from hookscope.execution.prepare import Prepared
    from hookscope.hooks.capture import Capture
    from hookscope.specs.program_options import ProgramOptions


@public
def capture(
    layers: LayerSelection,
    input: InputRequest,
    model: ModelRequest,
    run: RunOptions,
    interventions: Annotated[
        Interventions, Only("edits", "compare", "hooks", "hook_args", "hook_kind")
    ],
    options: CaptureOptions,
    request: Request,
    *,
    file: str | os.PathLike[str] | None = None,
) -> Capture:
    """Run a model once and return the inputs and outputs of the selected layers.

    With the folder of a run of a program that ``hookscope run`` started and that goes on now, its
    next step is recorded, and the program is not changed. If it does not train, that is the next
    call of the model that has the layers. The keywords ``layers``, ``what``, ``ops``,
    ``attention`` and ``max_bytes`` apply to it.

    Args:
        model: the spec of a model, or a module; or the folder of a run that goes on now.
        file: a ``.safetensors`` file that the capture is written to, as by ``save``. What is beyond
            64 MB goes there while the model runs, so memory does not grow with the recording.

    Raises:
        HookError: a hook raised; its ``capture`` has what was recorded before.
        ModelError, LayerError, InputError: a spec, a pattern or a file is wrong.
        ForwardError: the model itself raised; names the layer.
        EditError: an edit cannot be read, does not fit its layer, or changed nothing.
        CheckFailed: ``verify``, ``strict`` or ``max_bytes`` was not met.
        StoreError: the file cannot be written, and an earlier file is not changed; or a program
            ended before its next step did.
        RequestError: no program answers in the folder of a run, or it is another user's.

    Example:
        >>> import hookscope
        >>> shot = hookscope.capture("resnet18", layers=["layer3.*"], shape=(1, 3, 64, 64))
        >>> shot["layer3.0.relu:2/output"].shape
        torch.Size([1, 256, 4, 4])
    """
    from hookscope.execution.edit_effect import describe_effect
    from hookscope.execution.prepare import prepare
    from hookscope.execution.provenance import Provenance
    from hookscope.execution.recorded_run import find_stop_point, run_forward, wants_stop
    from hookscope.execution.trial_pass import check_recording_size
    from hookscope.execution.verification import check_all_ran, verify_output_unchanged
    from hookscope.hooks.op_recorder import is_graph
    from hookscope.tensors.grad_mode import grad_mode
    from hookscope.tensors.recording_file import RecordingFile

    traced_kinds = {
        kind for kind, traced in ((OP, options.ops), (ATTENTION, options.attention)) if traced
    }
    kinds = options.kinds | traced_kinds
    prepared = prepare(request)
    check_onnx_ops(is_graph(prepared.module), options.ops)
    stop = wants_stop(request, options, prepared)
    order = check_recording_size(prepared, kinds, options.max_bytes, stop=stop)
    chosen = request.chosen(replace(options, stop=bool(options.stop)))
    pages = None if file is None or not RecordingFile.is_supported() else RecordingFile(file)
    with (
        pages or nullcontext(),
        Provenance("capture", prepared, chosen) as provenance,
        grad_mode(False),
    ):
        point = find_stop_point(stop, order)
        forward = run_forward(prepared, kinds, options.max_bytes, stop=point, file=pages)
        recorded = provenance.capture = forward.capture
        if options.verify or traced_kinds:
            verify_output_unchanged(
                prepared, recorded.output, excuse_noise=not options.verify, recorded=len(recorded)
            )
        recorded.metadata = provenance.metadata() | forward.metadata
        recorded.metadata |= describe_effect(
            prepared,
            forward,
            functools.partial(run_forward, kinds=kinds),
            interventions.compare,
        )
    if options.verify:
        recorded.metadata["verified"] = True
    recorded.metadata |= _describe_output(prepared, recorded)
    if options.strict:
        check_all_ran(recorded)
    if file is not None:
        recorded.save(file)
    return recorded


def _describe_output(prepared: Prepared, recorded: Capture) -> dict[str, Any]:
    """What the output predicts, and how many tokens each expert got, where there are such."""
    from hookscope.execution.language_output import count_expert_tokens, describe_language_output
    from hookscope.execution.provenance import top_classes

    found: dict[str, Any] = {}
    if top := top_classes(prepared, recorded.output):
        found["top"] = top
    if experts := count_expert_tokens(recorded, prepared.module):
        found["experts"] = experts
    return found | describe_language_output(prepared, recorded.output)


capture.find_subject = find_subject


@handles(capture, RUNS)
def capture_next_step(
    model: str | os.PathLike[str],
    *,
    layers: Annotated[LayerSelection, Only("layers")],
    options: Annotated[CaptureOptions, Only("what", "ops", "attention", "max_bytes")],
    file: str | os.PathLike[str] | None = None,
) -> Capture:
    """Record the next step of a program that runs now."""
    from hookscope.specs.program_options import ProgramOptions

    asked = ProgramOptions(
        capture=True,
        what=options.what,
        ops=options.ops,
        attention=options.attention,
        max_bytes=options.max_bytes,
    )
    recorded = ask_for_capture(model, asked, layers)
    if file is not None:
        recorded.save(file)
    return recorded


def ask_for_capture(
    run: str | os.PathLike[str], asked: ProgramOptions, layers: LayerSelection
) -> Capture:
    """Ask the program of a run for the tensors of its next step."""
    from hookscope.hooks.capture import Capture
    from hookscope.stores.runs.live_socket import ask

    recorded, answer = ask(run, asked, as_texts(layers.layers), Capture.load)
    if answer.unmet:
        raise CheckFailed(
            f"At step {answer.step} {' '.join(answer.unmet)}",
            "Record fewer layers, or set a higher --max-bytes.",
        )
    return recorded


EXAMPLES = (
    Example(
        'hookscope capture --layer "layer3.*" --input img.png',
        "The outputs of one stage of resnet18 for an image.",
    ),
    Example(
        "hookscope capture sample_models/digits.py:trained --input sample_models/five.png",
        "All layers of a trained model from a Python file.",
    ),
    Example(
        "hookscope capture resnet18 --type Conv2d --shape 2x3x64x64 --no-output",
        "A table of statistics for noise, without a file.",
    ),
    Example(
        'hookscope capture sample_models/digits_scripted.pt --layer "conv*"',
        "A scripted file, which needs no Python code; .pt2 files work as well.",
    ),
    Example(
        'hookscope capture resnet18 --layer "*.conv?" --what output,input --shape 2x3x64x64',
        "Inputs and outputs.",
    ),
    Example(
        'hookscope capture resnet18 --layer "layer1.*" --ops --shape 1x3x64x64',
        "Results computed between modules, such as the sums of residual connections.",
    ),
    Example(
        'hookscope capture vit_b_16 --layer "*.self_attention" --attention',
        "Attention weights of each head.",
    ),
    Example(
        'hookscope capture sample_models/letters.py:Letters --input "text:hello" --generate 3',
        "Generate three tokens with a language model; each step is a separate call.",
    ),
    Example(
        'hookscope capture sample_models/digits.py:trained --edit "conv1[3,7]=zero" --compare',
        "Set two channels to zero, and show how much every later layer changes.",
    ),
    Example(
        'hookscope capture sample_models/digits.py:trained --hook "conv*=sample_models/'
        'own_hook.py:mute" --hook-arg channel=3 --layer "relu*"',
        "Run a custom hook after the convolutions.",
    ),
)


@command(
    "capture",
    options.model,
    options.layers,
    options_of(CaptureOptions, "what", "ops", "attention"),
    options.inputs,
    options.texts,
    options.interventions_of("capture"),
    options.run,
    options.device_map,
    options_of(RunOptions, "generate"),
    options_of(CaptureOptions, "stop", "verify", "strict", "max_bytes"),
    RECORDING.options,
    table_options,
    views="capture",
    examples=EXAMPLES,
    main="layer what input model-arg shape weights edit output",
    also="attention compare dtype generate hook hook-arg no-output ops partial rename tokenizer"
    " trust verify",
    topics="model-specs layers inputs weights edits hooks keys",
)
def capture_command(ctx: click.Context, **values: Any) -> None:
    """Run a model and record the outputs of its layers.

    Writes a safetensors file and prints a table of its tensors in execution order: shape, dtype and
    statistics. Values are copied when a layer returns, so later in-place operations do not change
    them. For a whole dataset use 'hookscope extract'.

    The folder of a run stands for the models of its program if 'hookscope run' started it and it
    goes on now: the next step of the training is recorded, or the next call of a model if the
    program does not train. The program is not changed. Only --layer, --what, --ops, --attention and
    --max-bytes apply. Its gradients: hookscope grads RUN.
    """
    output = values["output"]
    if output is not None and names_folder(output):
        raise RequestError(
            f"{output} is a folder; capture writes a single file.",
            "Name a file, or use 'hookscope extract' for the features of many inputs.",
        )
    run_recording(ctx, capture, values)
