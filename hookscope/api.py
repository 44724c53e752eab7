"""The verbs, each one function: what the command line does, for Python. Nothing here prints.

Notes on what was chosen by default go to the logger ``hookscope``.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from hookscope.binding import Hooks, OwnHook, bind
from hookscope.choices import DEFAULT_MODEL
from hookscope.errors import RequestError
from hookscope.events import Trace
from hookscope.execute import (
    announce_size,
    backward,
    demand_all_ran,
    demand_unchanged,
    forward,
    untouched,
)
from hookscope.hooks import Recorder
from hookscope.kinds import GRADIENTS, PARAM_GRAD, VALUES
from hookscope.losses.compute import Loss, compute
from hookscope.modules import ModuleTree, describe, refuse_lazy
from hookscope.own_hooks import carrying, gradients_changed, values_changed
from hookscope.prepare import Prepared, prepare
from hookscope.provenance import describe_run, top_classes, versions
from hookscope.records import Capture
from hookscope.select import select
from hookscope.sources import loading
from hookscope.sources.live import demand_model, hookable
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
        _several(layers),
        types=_several(types),
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
    verify: bool = False,
    strict: bool = False,
    max_bytes: int | None = None,
    hooks: Hooks = (),
    hook_args: Mapping[str, Any] | None = None,
    hook_kind: str | Iterable[str] = (),
) -> Capture:
    """Run a model once and return what the chosen layers took and gave.

    Args:
        model: a model's word, or a live module.
        layers: layer patterns; none means all. A leading ``!`` takes away.
        types: class names or globs of them.
        depth: names of at most so many parts.
        leaves: modules without children only.
        what: ``output``, ``input`` or both.
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
        verify: run again without hooks and demand a bit-equal output.
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
        CheckFailed: ``verify``, ``strict`` or ``max_bytes`` was not met.

    Example:
        >>> import hookscope
        >>> shot = hookscope.capture("resnet18", layers=["layer3.*"], shape=(1, 3, 64, 64))
        >>> shot["layer3.0.relu:2/output"].shape
        torch.Size([1, 256, 4, 4])
    """
    given = locals()
    options = _chosen(given, capture)
    kinds = _kinds(what, VALUES)
    prepared = _prepared(given)
    own = _own_hooks(given, prepared, backward=False)
    changed = partial(values_changed, prepared.module, own)
    announce_size(prepared, kinds, max_bytes)
    recorder = Recorder(prepared.module, prepared.layers, kinds, max_bytes=max_bytes)
    origin = partial(describe_run, "capture", prepared, options, own)
    guard = untouched(prepared.module, train=train, seed=seed)
    with carrying(recorder.capture, origin), torch.no_grad():
        with guard, changed(recorder), recorder as shot:
            shot.output = forward(prepared, recorder.capture)
        if verify:
            demand_unchanged(prepared, shot.output, around=changed)
    shot.metadata = origin()
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
    loss: str = "ce",
    target: Any = "argmax",
    reduction: str | None = None,
    raw: bool = False,
    layers: str | Iterable[str] = (),
    types: str | Iterable[str] = (),
    depth: int | None = None,
    leaves: bool = False,
    what: str | Iterable[str] = ("output", "param"),
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
    verify: bool = False,
    strict: bool = False,
    max_bytes: int | None = None,
    hooks: Hooks = (),
    hook_args: Mapping[str, Any] | None = None,
    hook_kind: str | Iterable[str] = (),
) -> Capture:
    """Run a model forward and a loss backward; return the gradients at the chosen layers.

    The gradient at the model's own input is always among them. Recording gradients hands clones
    through the model, so it is run once more without hooks, and must return the same bits; a model
    that is not deterministic gets a warning, or with ``verify`` an error. Keywords that ``capture``
    has too mean the same here.

    Args:
        model: a model's word, or a live module.
        loss: ``kl``, ``ce``, ``nll``, ``mse``, ``l1``, ``smooth_l1``, ``bce``, ``logit``, ``sum``
            or ``norm``.
        target: a class index, several for a batch, a label, ``argmax`` (the class that the model
            itself prefers), ``uniform``, or a tensor file.
        reduction: ``mean``, ``sum`` or ``batchmean``; None for the loss's own.
        raw: the loss straight on the model's output, without softmax or sigmoid.
        what: of ``output`` (gradient at each module's output), ``input`` (the share that flows back
            through that module to its input) and ``param``.
        hook_kind: besides ``forward`` and ``forward_pre``: ``backward``, called with
            ``(module, grad_input, grad_output)``, whose result replaces the gradient at the
            module's inputs; ``backward_pre``, ``(module, grad_output)``, the one at its outputs;
            ``tensor``, ``(grad)``, the same for one output tensor at a time.

    Raises:
        HookError: a hook raised; its ``capture`` holds what had been recorded before.
        LossError: the loss or its target does not fit the output.
        ForwardError: the model raised, forward or backward.
        CheckFailed: ``verify``, ``strict`` or ``max_bytes`` was not met.

    Example:
        >>> import hookscope
        >>> found = hookscope.grads("resnet18", loss="kl", target=3, layers=["fc"])
        >>> [record.key for record in found.records]
        ['fc/output.grad', 'fc/bias.grad', 'fc/weight.grad', './input.0.grad']
    """
    given = locals()
    options = _chosen(given, grads)
    kinds = _kinds(what, GRADIENTS)
    prepared = _prepared(given)
    own = _own_hooks(given, prepared, backward=True)
    changed = partial(values_changed, prepared.module, own)
    announce_size(prepared, kinds, max_bytes)
    recorder = Recorder(
        prepared.module, prepared.layers, kinds, model_input=True, max_bytes=max_bytes
    )
    origin = partial(describe_run, "grads", prepared, options, own)
    guard = untouched(prepared.module, train=train, seed=seed)
    back = gradients_changed(prepared.module, own, recorder)
    with carrying(recorder.capture, origin), torch.inference_mode(False), torch.enable_grad():
        with guard, changed(recorder), recorder as found, back:
            found.output = forward(prepared, recorder.capture)
            measured = _measure(given, prepared, found.output)
            backward(prepared, measured.value, recorder.capture)
            recorder.ran_backward = True
        found.output = map_tensors(found.output, lambda path, tensor: tensor.detach())
        demand_unchanged(prepared, found.output, excuse_noise=not verify, around=changed)
    found.metadata = origin()
    found.metadata["loss"] = _describe_loss(measured, raw)
    if verify:
        found.metadata["verified"] = True
    if strict:
        demand_all_ran(found)
    return found


def trace(
    model: str | os.PathLike[str] | nn.Module | torch.export.ExportedProgram = DEFAULT_MODEL,
    *,
    forward_only: bool = False,
    loss: str = "ce",
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
    options = _chosen(given, trace)
    prepared = _prepared(given)
    metadata = describe_run("trace", prepared, options)
    guard = untouched(prepared.module, train=train, seed=seed)
    autograd = torch.set_grad_enabled(not forward_only)
    watch = partial(Tracer, prepared.module, prepared.layers, prepared.device)
    with torch.inference_mode(False), autograd, guard, watch(backward=not forward_only) as tracer:
        output = forward(prepared)
        if not forward_only:
            measured = _measure(given, prepared, output)
            backward(prepared, measured.value, Capture())
            metadata["loss"] = _describe_loss(measured, raw)
    output = map_tensors(output, lambda path, tensor: tensor.detach())
    return tracer.trace(metadata, output)


@contextmanager
def record(
    module: nn.Module | torch.export.ExportedProgram,
    layers: str | Iterable[str] = (),
    what: str | Iterable[str] = ("output",),
    grads: bool = False,
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
    kinds = _kinds(what, VALUES)
    if grads:
        kinds |= {f"{kind}.grad" for kind in kinds} | {PARAM_GRAD}
    demand_model(module)
    with hookable(module) as open_module:
        word = type(open_module).__name__
        recorder = Recorder(open_module, select(open_module, _several(layers), word=word), kinds)
        with recorder as capture:
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


def _kinds(what: str | Iterable[str], known: Mapping[str, str]) -> set[str]:
    words = [word.strip() for word in what.split(",")] if isinstance(what, str) else list(what)
    unknown = [word for word in words if word not in known]
    if unknown or not words:
        wrong = repr(unknown[0]) if unknown else "Nothing"
        raise RequestError(f"{wrong} cannot be recorded.", f"Choose among {', '.join(known)}.")
    return {known[word] for word in words}


def _prepared(given: Mapping[str, Any]) -> Prepared:
    """Make ready what the keywords of ``capture`` and ``grads`` name."""
    selection = {name: _several(given[name]) for name in ("layers", "types")}
    recipe = {name: given[name] for name in ("shape", "preprocess", "size", "mean", "std")}
    run = ("weights", "model_args", "method", "trust", "seed", "dtype", "device", "train")
    return prepare(
        given["model"],
        given["input"],
        selection={**selection, "depth": given["depth"], "leaves": given["leaves"]},
        recipe=recipe,
        **{name: given[name] for name in run},
    )


def _own_hooks(
    given: Mapping[str, Any], prepared: Prepared, *, backward: bool
) -> tuple[OwnHook, ...]:
    """The hooks that the keywords name, at layers of the model that is going to run."""
    return bind(
        given["hooks"],
        given["hook_kind"],
        given["hook_args"] or {},
        model=prepared.module,
        layers=prepared.layers,
        word=prepared.loaded.word,
        backward=backward,
    )


def _measure(given: Mapping[str, Any], prepared: Prepared, output: Any) -> Loss:
    """The loss that the keywords name, of the model's output."""
    return compute(
        given["loss"],
        output,
        given["target"],
        reduction=given["reduction"],
        raw=given["raw"],
        categories=prepared.loaded.categories,
    )


def _describe_loss(measured: Loss, raw: bool) -> dict[str, Any]:
    return {
        "name": measured.name,
        "formula": measured.formula,
        "reduction": measured.reduction,
        "raw": raw,
        "target": measured.target,
        "value": float(measured.value.detach()),
    }


def _several(words: str | Iterable[str]) -> list[str]:
    """The words given; a lone one need not stand in a list."""
    return [words] if isinstance(words, str) else list(words)


def _chosen(given: Mapping[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
    """The keywords whose values are not the defaults, as JSON can hold them."""
    defaults = {n: p.default for n, p in inspect.signature(function).parameters.items()}
    plain = {n: _plain(value) for n, value in given.items() if n not in ("model", "input")}
    return {name: value for name, value in plain.items() if value != _plain(defaults[name])}


def _plain(value: Any) -> Any:
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return f"a {type(value).__name__}"
