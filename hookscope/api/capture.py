"""Run a model once and record the inputs and outputs of its layers."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from hookscope.execution.edit_effect import describe_effect
from hookscope.execution.expert_counts import count_expert_tokens
from hookscope.execution.language_output import describe_language_output
from hookscope.execution.prepare import prepare
from hookscope.execution.provenance import Provenance, top_classes
from hookscope.execution.recorded_run import find_stop_point, run_forward, wants_stop
from hookscope.execution.size_estimate import check_recording_size
from hookscope.execution.verification import check_all_ran, verify_output_unchanged
from hookscope.hooks.capture import Capture
from hookscope.hooks.ops.op_recorder import is_graph
from hookscope.specs.choices import DEFAULT_MODEL
from hookscope.specs.command_options import CaptureOptions
from hookscope.specs.early_stop_checks import check_early_stop
from hookscope.specs.intervention_spec import Hooks, Interventions
from hookscope.specs.model_spec import ONNX
from hookscope.specs.onnx_limits import check_onnx_ops
from hookscope.specs.record_kinds import ATTENTION, OP
from hookscope.specs.request import (
    InputRequest,
    LayerSelection,
    ModelRequest,
    Request,
)
from hookscope.specs.run_options import RunOptions
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.recording_file import RecordingFile


def capture(
    model: str | os.PathLike[str] | nn.Module | torch.export.ExportedProgram = DEFAULT_MODEL,
    *,
    layers: str | Iterable[str] = (),
    types: str | Iterable[str] = (),
    depth: int | None = None,
    leaves: bool = False,
    what: str | Iterable[str] = ("output",),
    ops: bool = False,
    attention: bool = False,
    input: Any = None,
    shape: Sequence[int] | None = None,
    preprocess: str | None = None,
    size: int | tuple[int, int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    chat: bool = False,
    weights: str | os.PathLike[str] = "random",
    rename: Mapping[str, str] | None = None,
    partial: bool = False,
    model_args: Mapping[str, Any] | None = None,
    method: str | None = None,
    attn: str | None = None,
    trust: bool = False,
    onnx_optimize: str | None = None,
    adapter: str | os.PathLike[str] | None = None,
    seed: int = 0,
    dtype: str | None = None,
    device: str | None = None,
    device_map: str | None = None,
    max_memory: Mapping[str, int] | None = None,
    train: bool = False,
    generate: int | None = None,
    edits: str | Iterable[str] = (),
    compare: bool = False,
    hooks: Hooks = (),
    hook_args: Mapping[str, Any] | None = None,
    hook_kind: str | Iterable[str] = (),
    verify: bool = False,
    strict: bool = False,
    max_bytes: int | None = None,
    stop: bool | None = False,
    file: str | os.PathLike[str] | None = None,
) -> Capture:
    """Run a model once and return the inputs and outputs of the selected layers.

    Args:
        model: the spec of a model, or a module.
        layers: layer patterns; none means all. A leading ``!`` excludes. Of ``h.3@-1`` only these
            positions of the sequence are stored (see docs/language-models.md).
        types: class names, or globs of them.
        depth: the maximum number of parts of a name.
        leaves: leaf modules only.
        what: ``output``, ``input`` or both.
        ops: also record the results of functions that the selected layers call between modules, as
            ``<module>[:call]/add`` (see docs/ops.md).
        attention: also record attention weights, as ``<module>[:call]/attention`` of shape
            (..., L, S), L queries by S keys. Weights hidden by a fused kernel are recomputed from
            its inputs and recorded only if they reproduce its output; ``metadata["attention"]`` has
            the error. With this or ``ops`` the model runs once more without hooks, and the output
            must be bit-identical.
        input: a spec or a list of specs: files of images and of other kinds, ``random:1x3x64x64``,
            ``NAME=FILE`` for one argument (see docs/inputs.md); or the arguments of the model: a
            tensor, a tuple of positional arguments, a dict of keyword arguments, or a pair of both.
            None: the example input of the model's file, or standard normal noise.
        shape: shape of the noise.
        preprocess: ``imagenet`` or ``none``; None for the preset of the weights.
        size: height and width that an image is resized to, in pixels.
        mean: subtracted from each channel of an image with values from 0 to 1.
        std: each channel is then divided by it.
        tokenizer: the ``tokenizer.json`` of a tokenizer for texts, or its folder of transformers;
            None for that of the model.
        chat: put each text in the tokenizer's chat template, as the message of a user.
        weights: ``random``, ``default``, a name of pretrained weights, or a file (of a sharded set
            its index or its folder).
        rename: prefixes of names in the file, each with its replacement in the model.
        partial: load the weights that match and keep the initial values of the rest.
        model_args: keyword arguments for a class or factory.
        method: the method to run instead of ``forward``, of a model given by its spec.
        attn: how a ``hf:`` model computes attention, such as ``eager``, which shows its weights.
        trust: open an exported program (.pt2) even if it carries pickles that run code.
        onnx_optimize: how far onnxruntime may change the graph of an ONNX file: ``none`` (the
            default), ``basic``, ``extended`` or ``all``.
        adapter: the folder of an adapter of the package peft, for a ``hf:`` model. Its layers are
            named as peft names them, such as ``q_proj.base_layer`` and ``q_proj.lora_A.default``.
        seed: of random weights, noise and dropout.
        dtype: ``float32``, ``float64``, ``float16`` or ``bfloat16``, for the model and its input.
        device: ``cpu``, ``cuda``, ``mps`` or ``auto``.
        device_map: instead of ``device``, how accelerate splits a model that is too large for one:
            ``auto``, ``balanced``, ``balanced_low_0`` or ``sequential``.
        max_memory: maximum bytes of weights per device, for ``device_map``, such as
            ``{"cuda:0": 10**10}``; other devices get up to their free memory.
        train: run in train mode; buffers are restored afterwards.
        generate: greedily generate so many tokens with a language model's own ``generate``. Every
            step has its own call number: ``lm_head:2/output``.
        edits: edits of activations during the run, each ``GLOB=OP:ARG`` (see docs/edits.md), in
            order. The value before an edit is recorded as ``<module>/output.unedited``. The model
            runs once more without edits: ``metadata["effect"]`` has the change of its output.
        compare: record that run too, and report the change at every later layer.
        verify: run again with the edits but no recording hooks, and require a bit-identical output.
        strict: require that every matched layer ran.
        max_bytes: maximum number of bytes to record.
        stop: end the run after the last call of the selected layers, so that the capture has no
            output of the model; ``coverage.not_run`` names what would follow. If that call is not
            known before the run, it ends after the first call of each. None: only if the call is
            known and nothing of the capture but its output needs the rest, as on the command line
            (see docs/large-models.md).
        file: a ``.safetensors`` file that the capture is written to, as by ``save``. What is beyond
            256 MB goes there while the model runs, so memory does not grow with the recording.
        hooks: custom hooks: ``[GLOB=]FILE.py:FUNCTION`` or ``[GLOB=]package.module:FUNCTION``,
            functions, or a dict from globs to either. Without a glob, a hook is registered on the
            selected layers.
        hook_args: further arguments, passed to every hook that has a parameter of that name.
        hook_kind: ``forward`` or ``forward_pre``; one for all hooks or one for each. The default is
            ``forward``: ``hook(module, input, output)``, whose result replaces the output unless it
            is None.

    Raises:
        HookError: a hook raised; its ``capture`` has what was recorded before.
        ModelError, LayerError, InputError: a spec, a pattern or a file is wrong.
        ForwardError: the model itself raised; names the layer.
        EditError: an edit cannot be read, does not fit its layer, or changed nothing.
        CheckFailed: ``verify``, ``strict`` or ``max_bytes`` was not met.
        StoreError: the file cannot be written. An earlier file is not changed.

    Example:
        >>> import hookscope
        >>> shot = hookscope.capture("resnet18", layers=["layer3.*"], shape=(1, 3, 64, 64))
        >>> shot["layer3.0.relu:2/output"].shape
        torch.Size([1, 256, 4, 4])
    """
    request = Request(
        "capture",
        ModelRequest(
            model, weights, rename, partial, model_args, method, attn, trust, onnx_optimize, adapter
        ),
        LayerSelection(layers, types, depth, leaves),
        InputRequest(input, shape, preprocess, size, mean, std, tokenizer, chat),
        RunOptions(seed, dtype, device, device_map, max_memory, train, generate),
        Interventions(edits, (), compare, hooks, hook_args, hook_kind),
    )
    options = CaptureOptions(what, ops, attention, verify, strict, max_bytes, stop)
    check_onnx_ops(request.model.source == ONNX, ops)
    check_early_stop(request, options)
    traced_kinds = ({OP} if ops else set()) | ({ATTENTION} if attention else set())
    kinds = options.kinds | traced_kinds
    prepared = prepare(request)
    check_onnx_ops(is_graph(prepared.module), ops)
    stop = wants_stop(request, options, prepared)
    order = check_recording_size(prepared, kinds, max_bytes, stop=stop)
    chosen = request.chosen(replace(options, stop=bool(options.stop)))
    with (
        Provenance("capture", prepared, chosen) as provenance,
        grad_mode(False),
    ):
        pages = None if file is None or not RecordingFile.is_supported() else RecordingFile(file)
        point = find_stop_point(stop, order)
        run = run_forward(prepared, kinds, max_bytes, stop=point, file=pages)
        recorded = provenance.capture = run.capture
        if verify or traced_kinds:
            verify_output_unchanged(
                prepared, recorded.output, excuse_noise=not verify, recorded=len(recorded)
            )
        recorded.metadata = provenance.metadata() | run.metadata
        recorded.metadata |= describe_effect(
            prepared, run, functools.partial(run_forward, kinds=kinds), compare
        )
    if verify:
        recorded.metadata["verified"] = True
    if top := top_classes(prepared, recorded.output):
        recorded.metadata["top"] = top
    if experts := count_expert_tokens(recorded, prepared.module):
        recorded.metadata["experts"] = experts
    recorded.metadata |= describe_language_output(prepared, recorded.output)
    if strict:
        check_all_ran(recorded)
    if file is not None:
        recorded.save(file)
    return recorded
