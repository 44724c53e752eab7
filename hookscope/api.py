"""The verbs, each one function: what the command line does, for Python. Nothing here prints.

Notes on what was chosen by default go to the logger ``hookscope``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from hookscope.ablating import Progress, carry_through, prepare_job
from hookscope.ablation import Ablation
from hookscope.agreement import GradCheck
from hookscope.choices import DEFAULT_MODEL, FIGURES, KNOCKOUTS
from hookscope.differentiate import differentiate, settle_loss
from hookscope.edits.effect import describe_effect
from hookscope.events import Trace
from hookscope.execute import (
    announce_size,
    demand_all_ran,
    demand_unchanged,
    forward,
    untouched,
)
from hookscope.keywords import (
    Telling,
    demand_word,
    kinds_of,
    options_of,
    prepared_for,
    several,
)
from hookscope.kinds import ATTENTION, GRADIENTS, OP, OP_GRAD, PARAM_GRAD, VALUES
from hookscope.losses.formulas import refuse_idle_loss
from hookscope.measuring import settle
from hookscope.modules import ModuleTree, describe, refuse_lazy
from hookscope.numerical import compare as compare_numerically
from hookscope.numerical import demand_tolerances, unvaried
from hookscope.ops.watch import watched
from hookscope.own_hooks.binding import Hooks
from hookscope.prepare import prepare
from hookscope.provenance import describe_run, top_classes, versions
from hookscope.recorder import Recorder
from hookscope.records import Capture
from hookscope.runs import run_backward, run_forward, run_step
from hookscope.select import select
from hookscope.sources import loading
from hookscope.sources.autograd_function import applied, is_function
from hookscope.sources.live import demand_model, hookable
from hookscope.stepping import settle_rule
from hookscope.tensors import map_tensors
from hookscope.tracing import Tracer

log = logging.getLogger("hookscope")

load_model = loading.load
load = Capture.load


def tree(
    model: str | os.PathLike[str] | nn.Module | torch.export.ExportedProgram = DEFAULT_MODEL,
    *,
    layers: str | Iterable[str] = (),
    types: str | Iterable[str] = (),
    depth: int | None = None,
    leaves: bool = False,
    shapes: bool = False,
    shape: Sequence[int] | None = None,
    model_args: Mapping[str, Any] | None = None,
    method: str | None = None,
    trust: bool = False,
) -> ModuleTree:
    """Return the named-module tree of a model.

    Args:
        model: a model's word, or a live module.
        layers: layer patterns; none means all. A leading ``!`` takes away.
        types: class names or globs of them, such as ``Conv2d``.
        depth: names of at most so many parts; 0 is the model itself.
        leaves: modules without children only.
        shapes: add output shapes, calls and FLOPs, from a pass on the meta device, or from a true
            one where the model cannot run there.
        shape: shape of the input for that pass.
        model_args: keyword arguments for a class or factory.
        method: the method to run in place of ``forward``, of a model given by its word.
        trust: open an exported program (.pt2) even if it carries pickles that run code.

    Raises:
        ModelError: no such model.
        LayerError: a pattern matches nothing.

    Example:
        >>> import hookscope
        >>> tree = hookscope.tree("resnet18", layers=["layer1.0.*"], types=["Conv2d"])
        >>> [(node.name, node.parameters) for node in tree.nodes]
        [('layer1.0.conv1', 36864), ('layer1.0.conv2', 36864)]
    """
    demand_model(model, str, os.PathLike)
    if not isinstance(model, str | os.PathLike):
        loaded = loading.wrap(model)
    else:
        loaded = loading.load(model, model_args=model_args, method=method, trust=trust, meta=True)
    refuse_lazy(loaded.module)
    chosen = select(
        loaded.module,
        several(layers),
        types=several(types),
        depth=depth,
        leaves=leaves,
        word=loaded.word,
    )
    whole = describe(loaded.module, loaded.word)
    if shapes:
        from hookscope.layer_runs import with_shapes  # its FLOP counter takes 0.1 s to import

        whole = with_shapes(whole, loaded, shape, model_args)
    names = {layer.name for layer in chosen}
    return replace(whole, nodes=tuple(node for node in whole.nodes if node.name in names))


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
    weights: str | os.PathLike[str] = "random",
    model_args: Mapping[str, Any] | None = None,
    method: str | None = None,
    trust: bool = False,
    seed: int = 0,
    dtype: str | None = None,
    device: str | None = None,
    train: bool = False,
    edits: str | Iterable[str] = (),
    compare: bool = False,
    hooks: Hooks = (),
    hook_args: Mapping[str, Any] | None = None,
    hook_kind: str | Iterable[str] = (),
    verify: bool = False,
    strict: bool = False,
    max_bytes: int | None = None,
) -> Capture:
    """Run a model once and return what the chosen layers took and gave.

    Args:
        model: a model's word, or a live module.
        layers: layer patterns; none means all. A leading ``!`` takes away.
        types: class names or globs of them.
        depth: names of at most so many parts.
        leaves: modules without children only.
        what: ``output``, ``input`` or both.
        ops: record too what functions return that the chosen layers call between modules, as
            ``<module>[:call]/add`` (see docs/ops.md).
        attention: record the weights of attention too, as ``<module>[:call]/attention`` of shape
            (..., L, S), L queries by S keys. Those that a fused kernel hides are recomputed from
            its inputs, and kept only if they give the kernel's output; ``metadata["attention"]``
            tells how far off that was. With this or ``ops`` the model is run once more without
            hooks, and must return the same bits.
        input: image files (one or a list), or what the model is called with: a tensor, a tuple of
            positional arguments, a dict of keyword arguments, or a pair of both. None: what the
            model's file offers, or standard normal noise.
        shape: shape of that noise.
        preprocess: ``imagenet`` or ``none``; None for the weights' own recipe.
        size: height and width an image is brought to, in pixels.
        mean: subtracted from each channel of an image whose values lie from 0 to 1.
        std: what each channel is then divided by.
        weights: ``random``, ``default``, a name of pretrained weights, or a file.
        model_args: keyword arguments for a class or factory.
        method: the method to run in place of ``forward``, of a model given by its word.
        trust: open an exported program (.pt2) even if it carries pickles that run code.
        seed: of random weights, noise and dropout.
        dtype: ``float32``, ``float64``, ``float16`` or ``bfloat16``, for the model and its input.
        device: ``cpu``, ``cuda``, ``mps`` or ``auto``.
        train: run in train mode; buffers are put back afterwards.
        edits: changes to activations on their way, each ``GLOB=OP:ARG`` (see docs/edits.md), in the
            order given. The value before goes to ``<module>/output.unedited``, and the model runs
            once more without edits: ``metadata["effect"]`` tells what they did to its output.
        compare: record that run too and tell how far every later layer moved.
        verify: run again without hooks, but with the edits, and demand a bit-equal output.
        strict: demand that every matched layer ran.
        max_bytes: stop rather than record more.
        hooks: hooks of your own: ``[GLOB=]FILE.py:FUNCTION`` or ``[GLOB=]package.module:FUNCTION``,
            functions, or a dict from globs to either. One without a glob goes to the chosen layers.
        hook_args: further arguments, for every hook that has a parameter of the name.
        hook_kind: ``forward`` or ``forward_pre``; one for all hooks or one for each. None given
            means ``forward``: ``hook(module, input, output)``, and what it returns, unless None,
            replaces the output.

    Raises:
        HookError: a hook raised; its ``capture`` holds what had been recorded before.
        ModelError, LayerError, InputError: a word, a pattern or a file is wrong.
        ForwardError: the model itself raised; names the layer.
        EditError: an edit cannot be read, does not fit its layer, or changed nothing.
        CheckFailed: ``verify``, ``strict`` or ``max_bytes`` was not met.

    Example:
        >>> import hookscope
        >>> shot = hookscope.capture("resnet18", layers=["layer3.*"], shape=(1, 3, 64, 64))
        >>> shot["layer3.0.relu:2/output"].shape
        torch.Size([1, 256, 4, 4])
    """
    given = locals()
    options = options_of(given, capture)
    kinds = kinds_of(what, VALUES)
    watching = ({OP} if ops else set()) | ({ATTENTION} if attention else set())
    kinds |= watching
    prepared = prepared_for("capture", given)
    announce_size(prepared, kinds, max_bytes)
    with Telling("capture", prepared, options) as told, torch.no_grad():
        run = run_forward(prepared, kinds, max_bytes)
        shot = told.capture = run.capture
        if verify or watching:
            demand_unchanged(prepared, shot.output, excuse_noise=not verify)
        shot.metadata = told.origin() | run.told
        shot.metadata |= describe_effect(prepared, run, partial(run_forward, kinds=kinds), compare)
    if verify:
        shot.metadata["verified"] = True
    if top := top_classes(prepared, shot.output):
        shot.metadata["top"] = top
    if strict:
        demand_all_ran(shot)
    return shot


def grads(
    model: str | os.PathLike[str] | nn.Module | torch.export.ExportedProgram = DEFAULT_MODEL,
    *,
    loss: str | Callable[..., Any] | None = None,
    target: Any = "argmax",
    reduction: str | None = None,
    raw: bool = False,
    penalty: str | None = None,
    layers: str | Iterable[str] = (),
    types: str | Iterable[str] = (),
    depth: int | None = None,
    leaves: bool = False,
    what: str | Iterable[str] = ("output", "param"),
    ops: bool = False,
    input: Any = None,
    shape: Sequence[int] | None = None,
    preprocess: str | None = None,
    size: int | tuple[int, int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    weights: str | os.PathLike[str] = "random",
    model_args: Mapping[str, Any] | None = None,
    method: str | None = None,
    trust: bool = False,
    seed: int = 0,
    dtype: str | None = None,
    device: str | None = None,
    train: bool = False,
    edits: str | Iterable[str] = (),
    grad_edits: str | Iterable[str] = (),
    compare: bool = False,
    hooks: Hooks = (),
    hook_args: Mapping[str, Any] | None = None,
    hook_kind: str | Iterable[str] = (),
    verify: bool = False,
    strict: bool = False,
    max_bytes: int | None = None,
) -> Capture:
    """Run a model forward and a loss backward; return the gradients at the chosen layers.

    The gradient at the model's own input is always among them. Recording gradients hands clones
    through the model, so it is run once more without hooks, and must return the same bits; a model
    that is not deterministic gets a warning, or with ``verify`` an error. Keywords that ``capture``
    has too mean the same here.

    Args:
        model: a model's word, or a live module.
        loss: ``kl``, ``ce``, ``nll``, ``mse``, ``l1``, ``smooth_l1``, ``bce``, ``logit``, ``sum``
            or ``norm``; or a function of your own, as ``FILE.py:FUNCTION`` or the function itself,
            that takes the output, the output and the target, or parameters named ``output``,
            ``target`` and ``input``, and returns a tensor of one number. None: ``ce``, and ``sum``
            with ``penalty``.
        target: a class index, several for a batch, a label, ``argmax`` (the class that the model
            itself prefers), ``uniform``, or a tensor file.
        reduction: ``mean``, ``sum`` or ``batchmean``; None for the loss's own.
        raw: the loss straight on the model's output, without softmax or sigmoid.
        penalty: ``gp`` for the gradients of the gradient penalty (Gulrajani et al., 2017) in place
            of those of the loss: the mean over the batch of (norm - 1)^2, where norm is that of the
            gradient at one sample's input of the score, which is the loss summed over the batch.
            That first gradient is in the capture too, as ``./input.0.score.grad``.
        what: of ``output`` (gradient at each module's output), ``input`` (the share that flows back
            through that module to its input) and ``param``.
        ops: record too the gradients at what functions return that the chosen layers call between
            modules, as ``<module>[:call]/add.grad``.
        grad_edits: changes to the gradient at modules' outputs, each ``GLOB=OP:ARG``, which also
            reach all that lies further back. ``<module>/output.grad`` is the edited one, and
            ``<module>/output.grad.unedited`` what had arrived.
        compare: run once more without edits and tell how far every recorded gradient moved.
        hook_kind: besides ``forward`` and ``forward_pre``: ``backward``, called with
            ``(module, grad_input, grad_output)``, whose result replaces the gradient at the
            module's inputs; ``backward_pre``, ``(module, grad_output)``, the one at its outputs;
            ``tensor``, ``(grad)``, the same for one output tensor at a time.

    Raises:
        HookError: a hook raised; its ``capture`` holds what had been recorded before.
        LossError: the loss or its target does not fit the output.
        EditError: an edit cannot be read, does not fit its layer, or changed nothing.
        ForwardError: the model raised, forward or backward.
        CheckFailed: ``verify``, ``strict`` or ``max_bytes`` was not met.

    Example:
        >>> import hookscope
        >>> found = hookscope.grads("resnet18", loss="kl", target=3, layers=["fc"])
        >>> [record.key for record in found.records]
        ['fc/output.grad', 'fc/bias.grad', 'fc/weight.grad', './input.0.grad']
    """
    given = locals()
    options = options_of(given, grads)
    kinds = kinds_of(what, GRADIENTS) | ({OP_GRAD} if ops else set())
    measure = settle_loss(loss, target, reduction, raw, penalty)
    prepared = prepared_for("grads", given)
    announce_size(prepared, kinds, max_bytes)
    again = partial(run_backward, kinds=kinds, measure=measure)
    with Telling("grads", prepared, options) as told, torch.enable_grad():
        run = again(prepared, max_bytes=max_bytes)
        found = told.capture = run.capture
        demand_unchanged(prepared, found.output, excuse_noise=not verify)
        found.metadata = told.origin() | run.told
        found.metadata |= describe_effect(prepared, run, again, compare)
    if verify:
        found.metadata["verified"] = True
    if strict:
        demand_all_ran(found)
    return found


def step(
    model: str | os.PathLike[str] | nn.Module | torch.export.ExportedProgram = DEFAULT_MODEL,
    *,
    optimizer: str = "sgd",
    lr: float | None = None,
    opt_args: Mapping[str, Any] | None = None,
    loss: str | Callable[..., Any] | None = None,
    target: Any = "argmax",
    reduction: str | None = None,
    raw: bool = False,
    layers: str | Iterable[str] = (),
    types: str | Iterable[str] = (),
    depth: int | None = None,
    leaves: bool = False,
    input: Any = None,
    shape: Sequence[int] | None = None,
    preprocess: str | None = None,
    size: int | tuple[int, int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    weights: str | os.PathLike[str] = "random",
    model_args: Mapping[str, Any] | None = None,
    method: str | None = None,
    trust: bool = False,
    seed: int = 0,
    dtype: str | None = None,
    device: str | None = None,
    train: bool = False,
    edits: str | Iterable[str] = (),
    grad_edits: str | Iterable[str] = (),
    compare: bool = False,
    hooks: Hooks = (),
    hook_args: Mapping[str, Any] | None = None,
    hook_kind: str | Iterable[str] = (),
    strict: bool = False,
    max_bytes: int | None = None,
) -> Capture:
    """Make one step of an optimizer; return each parameter's gradient and its update.

    Forward, the loss backward, and ``torch.optim``'s own step, from a fresh state: no momentum has
    been gathered before. Every parameter that requires grad is stepped; recorded are those of the
    chosen layers, ``fc/weight.grad`` and ``fc/weight.update``, the value after the step minus the
    one before. A live model is put back as it was, parameters, buffers and gradients. Keywords that
    ``grads`` has too mean the same here.

    Args:
        optimizer: ``sgd``, ``adam``, ``adamw``, ``rmsprop``, ``adagrad``, ``adadelta``, ``adamax``,
            ``adafactor``, ``asgd``, ``nadam``, ``radam`` or ``rprop``.
        lr: the learning rate; None for the optimizer's own.
        opt_args: further arguments of its class in ``torch.optim``, such as ``momentum``.
        compare: make the step once more without edits and hooks, and tell how far every recorded
            gradient and update moved.
        hook_kind: besides those of ``grads``: ``step_pre`` and ``step_post``, called with
            ``(optimizer, args, kwargs)`` before and after the step. What they do to gradients and
            parameters counts: the update is the value after all of it minus that before.

    Raises:
        RequestError: there is no such optimizer or argument, or no parameter requires grad.
        LossError: the loss or its target does not fit the output.
        ForwardError: the model raised, forward or backward.
        CheckFailed: ``strict`` or ``max_bytes`` was not met.

    Example:
        >>> import torch, hookscope
        >>> net = torch.nn.Linear(4, 1)
        >>> made = hookscope.step(net, input=torch.ones(2, 4), loss="sum", lr=0.5)
        >>> made["./weight.grad"]
        tensor([[2., 2., 2., 2.]])
        >>> [record.key for record in made.records if record.kind == "param.update"]
        ['./bias.update', './weight.update']
    """
    given = locals()
    options = options_of(given, step)
    rule = settle_rule(optimizer, lr, opt_args)
    measure = settle_loss(loss, target, reduction, raw)
    prepared = prepared_for("step", given)
    announce_size(prepared, {PARAM_GRAD}, max_bytes)
    again = partial(run_step, measure=measure, rule=rule)
    with Telling("step", prepared, options) as told, torch.enable_grad():
        run = again(prepared, max_bytes=max_bytes)
        made = told.capture = run.capture
        if prepared.plan.hands_on_clones:
            demand_unchanged(prepared, made.output, excuse_noise=True)
        made.metadata = told.origin() | run.told
        made.metadata |= describe_effect(prepared, run, again, compare)
    if strict:
        demand_all_ran(made)
    return made


def ablate(
    model: str | os.PathLike[str] | nn.Module | torch.export.ExportedProgram = DEFAULT_MODEL,
    *,
    by: str = "zero",
    channels: bool = False,
    rank: str | None = None,
    loss: str | Callable[..., Any] | None = None,
    target: Any = "argmax",
    reduction: str | None = None,
    raw: bool = False,
    layers: str | Iterable[str] = (),
    types: str | Iterable[str] = (),
    depth: int | None = None,
    leaves: bool = False,
    input: Any = None,
    shape: Sequence[int] | None = None,
    preprocess: str | None = None,
    size: int | tuple[int, int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    weights: str | os.PathLike[str] = "random",
    model_args: Mapping[str, Any] | None = None,
    method: str | None = None,
    trust: bool = False,
    seed: int = 0,
    dtype: str | None = None,
    device: str | None = None,
    train: bool = False,
    file: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Ablation:
    """Knock out every chosen layer in turn, and rank them by how far that moves the output.

    A knock-out is an edit of a layer's output, in all of its calls; the model is run anew for each,
    from the same seed. Keywords that ``grads`` has too mean the same here.

    Args:
        by: ``zero``; ``mean``, each channel's mean over the batch and all positions; or ``noise``,
            standard normal noise times the output's standard deviation, added to it.
        channels: knock out every channel of every layer on its own.
        rank: what to sort by, the largest change first: ``score``, the mean over the batch of the
            target's logit; ``loss``; or ``output``, the norm of the difference of the outputs over
            that of the clean one. None: ``score`` where there is one, else ``output``.
        loss: as for ``grads``; None for ``ce`` where the output is one of class scores.
        target: as for ``grads``; ``argmax`` is settled by the run with nothing knocked out.
        layers: layer patterns. None given, and no types or depth: all modules without children.
        file: a JSON file that the result goes to every few seconds and at the end. One that holds
            a part of the very same ablation is gone on from.
        progress: called with the number of knock-outs made and that of all.

    Raises:
        RequestError: ``by`` or ``rank`` is no word of these.
        LossError: the loss or its target does not fit the output, or the figure to rank by is not
            defined for it.
        ForwardError: the model raised with nothing knocked out.
        StoreError: the file cannot be written.

    Example:
        >>> import torch, hookscope
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Flatten())
        >>> found = hookscope.ablate(net, input=torch.ones(2, 4), rank="output")
        >>> [(knockout.layer, knockout.output) for knockout in found.knockouts]
        [('0', 1.0), ('1', 1.0), ('2', 1.0)]
    """
    given = {name: value for name, value in locals().items() if name not in ("file", "progress")}
    options = options_of(given, ablate)
    demand_word("by", by, KNOCKOUTS)
    demand_word("rank", rank or FIGURES[0], FIGURES)
    measure = settle_loss(loss, target, reduction, raw)
    everything = not (several(layers) or several(types) or depth is not None)
    prepared = prepared_for("ablate", given | {"leaves": leaves or everything})
    choices: Any = {"loss": loss, "target": target, "reduction": reduction, "raw": raw}
    yardstick = partial(settle, prepared, **choices, rank=rank, measure=measure)
    with torch.no_grad():
        metadata = describe_run("ablate", prepared, options)
        job, result = prepare_job(prepared, by, channels, rank, yardstick, metadata)
        return carry_through(job, result, file, progress)


def trace(
    model: str | os.PathLike[str] | nn.Module | torch.export.ExportedProgram = DEFAULT_MODEL,
    *,
    forward_only: bool = False,
    loss: str | Callable[..., Any] | None = None,
    target: Any = "argmax",
    reduction: str | None = None,
    raw: bool = False,
    layers: str | Iterable[str] = (),
    types: str | Iterable[str] = (),
    depth: int | None = None,
    leaves: bool = False,
    input: Any = None,
    shape: Sequence[int] | None = None,
    preprocess: str | None = None,
    size: int | tuple[int, int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    weights: str | os.PathLike[str] = "random",
    model_args: Mapping[str, Any] | None = None,
    method: str | None = None,
    trust: bool = False,
    seed: int = 0,
    dtype: str | None = None,
    device: str | None = None,
    train: bool = False,
) -> Trace:
    """Run a model forward and a loss backward; return which layers fired, in order.

    Times are those of one run, by the wall clock, with what hookscope's own hooks took out of them;
    of a GPU, after waiting for it at every hook. Keywords of ``grads`` mean the same here.

    Args:
        forward_only: run no backward pass, and nothing of autograd.

    Raises:
        LossError: the loss or its target does not fit the output.
        ForwardError: the model raised, forward or backward.

    Example:
        >>> import hookscope
        >>> found = hookscope.trace("resnet18", layers=["layer4.1.*"], shape=(1, 3, 64, 64))
        >>> [event.module for event in found.events if event.direction == "backward"][:3]
        ['layer4.1.relu', 'layer4.1.bn2', 'layer4.1.conv2']
    """
    given = locals()
    options = options_of(given, trace)
    if forward_only:
        refuse_idle_loss(loss, target, reduction, raw)
    measure = None if forward_only else settle_loss(loss, target, reduction, raw)
    prepared = prepared_for("trace", given)
    metadata = describe_run("trace", prepared, options)
    guard = untouched(prepared.module, train=train, seed=seed)
    autograd = torch.set_grad_enabled(not forward_only)
    watch = partial(Tracer, prepared.module, prepared.layers, prepared.device)
    with torch.inference_mode(False), autograd, guard, watch(backward=not forward_only) as tracer:
        if measure is None:
            output = forward(prepared)
        else:
            recorder = Recorder(prepared.module, (), ())
            metadata |= differentiate(prepared, recorder, measure)
            output = recorder.capture.output
    output = map_tensors(output, lambda path, tensor: tensor.detach())
    if measure is not None:  # the clones that go through the model then
        with torch.enable_grad():
            demand_unchanged(prepared, output, excuse_noise=True)
    return tracer.trace(metadata, output)


def gradcheck(
    model: str
    | os.PathLike[str]
    | nn.Module
    | torch.export.ExportedProgram
    | type[torch.autograd.Function] = DEFAULT_MODEL,
    *,
    input: Any = None,
    shape: Sequence[Sequence[int]] | Sequence[int] = (),
    weights: str | os.PathLike[str] = "random",
    model_args: Mapping[str, Any] | None = None,
    method: str | None = None,
    trust: bool = False,
    seed: int = 0,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
) -> GradCheck:
    """Compare a backward with numerical gradients, and say where they part.

    The model, or a copy of a live one, runs in float64 and eval mode. Every entry of every floating
    input is moved by ``eps`` to either side; each derivative of each output that the central
    difference gives is held against the one of a backward pass. Inputs at a kink (0 for a ReLU)
    have no derivative to agree on. Parameters that require grad are varied too, unless they are
    more than 10,000 numbers together: ``unvaried`` tells.

    Args:
        model: as for ``capture``, or a class derived from ``torch.autograd.Function``, itself or as
            ``FILE.py:NAME``.
        input: as for ``capture``.
        shape: of the one input, or a list of a shape for each; they are filled with seeded noise.
        eps: half the width of the central difference.
        atol: differences up to ``atol + rtol * |numerical|`` are none, as for
            ``torch.autograd.gradcheck``, whose defaults these are.
        rtol: the relative part of it.

    Raises:
        ModelError, InputError, RequestError: a word, a shape or a tolerance is wrong, or there is
            nothing to check.
        ForwardError: the model raised, forward or backward.

    Example:
        >>> import torch, hookscope
        >>> hookscope.gradcheck(torch.nn.Tanh(), shape=(2, 3)).ok
        True
    """
    given = locals()
    options = options_of(given, gradcheck)
    demand_tolerances(eps, atol, rtol)
    checked: Any = applied(model) if is_function(model) else model
    shapes: list[Any] = [shape] if shape and isinstance(shape[0], int) else list(shape)
    if len(shapes) > 1 and input is None:
        source = torch.Generator().manual_seed(seed)
        input = tuple(torch.randn(*each, generator=source) for each in shapes)
        shapes = []
    with torch.inference_mode(False):
        prepared = prepare(
            checked,
            input,
            selection={},
            recipe={"shape": shapes[0] if shapes else None},
            weights=weights,
            model_args=model_args,
            method=method,
            trust=trust,
            seed=seed,
            dtype="float64",
            device="cpu",
            train=False,
        )
        with untouched(prepared.module, train=False, seed=seed):
            found = tuple(compare_numerically(prepared, eps, atol, rtol))
    run = describe_run("gradcheck", prepared, options)
    return GradCheck(found, eps, atol, rtol, run, unvaried(prepared))


@contextmanager
def record(
    module: nn.Module | torch.export.ExportedProgram,
    layers: str | Iterable[str] = (),
    what: str | Iterable[str] = ("output",),
    grads: bool = False,
    ops: bool = False,
) -> Iterator[Capture]:
    """Record inside your own loop: whatever ``module`` runs within the ``with`` block.

    Every call of every chosen module is kept, as copies on the module's device; no hook stays on
    the module afterwards. With ``grads=True`` a backward pass inside the block adds the gradients:
    at each value named in ``what``, and at the parameters of the chosen layers. A parameter's
    gradient is that of one backward pass; the second pass is its call 2.

    Args:
        module: the model, in whatever mode and on whatever device it is; a scripted or traced one
            too, or an exported program, which is run through what its ``module()`` returns.
        layers: layer patterns; none means all.
        what: ``output``, ``input`` or both.
        grads: record gradients too.
        ops: record too what functions return that the chosen layers call between modules.

    Raises:
        LayerError: a pattern matches nothing.

    Example:
        >>> import torch, hookscope
        >>> net = torch.nn.Linear(4, 1)
        >>> with hookscope.record(net, grads=True) as capture:
        ...     net(torch.ones(2, 4)).sum().backward()
        >>> capture["./weight.grad"]
        tensor([[2., 2., 2., 2.]])
    """
    kinds = kinds_of(what, VALUES) | ({OP} if ops else set())
    if grads:
        kinds |= {f"{kind}.grad" for kind in kinds} | {PARAM_GRAD}
    demand_model(module)
    with hookable(module) as open_module:
        word = type(open_module).__name__
        recorder = Recorder(open_module, select(open_module, several(layers), word=word), kinds)
        with recorder as capture, watched(recorder):
            run = {"command": "record", "model": {"word": word}, "versions": versions()}
            capture.metadata = run
            yield capture
    for name in recorder.doubts:
        log.warning(
            "%s: a tensor was changed in place that shares memory with another one. While gradients"
            " are recorded the other does not change with it: if the model reads it afterwards,"
            " leave this layer out.",
            name,
        )
