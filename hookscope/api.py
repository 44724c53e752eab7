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

from hookscope.agreement import GradCheck
from hookscope.choices import DEFAULT_MODEL
from hookscope.edits.effect import describe_edits
from hookscope.edits.plan import bind
from hookscope.edits.words import read_edits, refuse_idle_comparison
from hookscope.errors import RequestError
from hookscope.execute import announce_size, demand_all_ran, demand_unchanged
from hookscope.differentiate import differentiate, settle_loss
from hookscope.errors import RequestError
from hookscope.execute import (
    announce_size,
    demand_all_ran,
    demand_unchanged,
    forward,
    untouched,
)
from hookscope.hooks import Recorder
from hookscope.kinds import GRADIENTS, PARAM_GRAD, VALUES
from hookscope.modules import ModuleTree, describe, refuse_lazy
from hookscope.numerical import compare
from hookscope.prepare import Prepared, prepare
from hookscope.provenance import describe_run, top_classes, versions
from hookscope.records import Capture
from hookscope.runs import run_backward, run_forward
from hookscope.select import select
from hookscope.sources import loading
from hookscope.sources.functions import Applied, is_function
from hookscope.sources.live import demand_model, hookable
from hookscope.stepping import settle_rule, take_step
from hookscope.tensors import map_tensors

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
    edits: str | Iterable[str] = (),
    compare: bool = False,
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

    Raises:
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
    options = _chosen(given, capture)
    kinds = _kinds(what, VALUES)
    prepared = _prepared(given)
    announce_size(prepared, kinds, max_bytes)
    run = run_forward(prepared, kinds, max_bytes)
    shot = run.capture
    if verify:
        with torch.no_grad():
            demand_unchanged(prepared, shot.output)
    shot.metadata = describe_run("capture", prepared, options)
    if prepared.plan:
        again = partial(run_forward, kinds=kinds) if compare else None
        shot.metadata |= describe_edits(prepared, run, again)
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
        grad_edits: changes to the gradient at modules' outputs, each ``GLOB=OP:ARG``, which also
            reach all that lies further back. ``<module>/output.grad`` is the edited one, and
            ``<module>/output.grad.unedited`` what had arrived.
        compare: run once more without edits and tell how far every recorded gradient moved.

    Raises:
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
    options = _chosen(given, grads)
    kinds = _kinds(what, GRADIENTS)
    measure = settle_loss(loss, target, reduction, raw, penalty)
    prepared = _prepared(given)
    announce_size(prepared, kinds, max_bytes)
    differentiate = partial(
        run_backward, kinds=kinds, loss=loss, target=target, reduction=reduction, raw=raw
    )
    run = differentiate(prepared, max_bytes=max_bytes)
    found, measured = run.capture, run.loss
    assert measured is not None
    with torch.enable_grad():
        demand_unchanged(prepared, found.output, excuse_noise=not verify)
    found.metadata = describe_run("grads", prepared, options)
    if prepared.plan:
        found.metadata |= describe_edits(prepared, run, differentiate if compare else None)
    found.metadata["loss"] = {
        "name": measured.name,
        "formula": measured.formula,
        "reduction": measured.reduction,
        "raw": raw,
        "target": measured.target,
        "value": float(measured.value.detach()),
    }
    guard = untouched(prepared.module, train=train, seed=seed)
    with guard, torch.inference_mode(False), torch.enable_grad(), recorder as found:
        described = differentiate(prepared, recorder, measure)
    found.output = map_tensors(found.output, lambda path, tensor: tensor.detach())
    with torch.enable_grad():
        demand_unchanged(prepared, found.output, excuse_noise=not verify)
    found.metadata = describe_run("grads", prepared, options) | described
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
    options = _chosen(given, step)
    rule = settle_rule(optimizer, lr, opt_args)
    measure = settle_loss(loss, target, reduction, raw)
    prepared = _prepared(given)
    announce_size(prepared, {PARAM_GRAD}, max_bytes)
    recorder = Recorder(prepared.module, prepared.layers, {PARAM_GRAD}, max_bytes=max_bytes)
    guard = untouched(prepared.module, train=train, seed=seed)
    with guard, torch.inference_mode(False), torch.enable_grad(), recorder as made:
        described = take_step(prepared, recorder, measure, rule)
    made.output = map_tensors(made.output, lambda path, tensor: tensor.detach())
    made.metadata = describe_run("step", prepared, options) | described
    if strict:
        demand_all_ran(made)
    return made


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
    have no derivative to agree on. Parameters are not varied.

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
    options = _chosen(given, gradcheck)
    applied: Any = Applied(model) if is_function(model) else model
    shapes: list[Any] = [shape] if shape and isinstance(shape[0], int) else list(shape)
    if len(shapes) > 1 and input is None:
        source = torch.Generator().manual_seed(seed)
        input = tuple(torch.randn(*each, generator=source) for each in shapes)
        shapes = []
    prepared = prepare(
        applied,
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
    with untouched(prepared.module, train=False, seed=seed), torch.inference_mode(False):
        found = tuple(compare(prepared, eps, atol, rtol))
    run = describe_run("gradcheck", prepared, options)
    return GradCheck(found, eps, atol, rtol, run)


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
    values = read_edits(given["edits"])
    gradients = read_edits(given.get("grad_edits", ()), gradients=True)
    refuse_idle_comparison(given["compare"], values, gradients)
    selection = {name: _several(given[name]) for name in ("layers", "types")}
    recipe = {name: given[name] for name in ("shape", "preprocess", "size", "mean", "std")}
    run = ("weights", "model_args", "method", "trust", "seed", "dtype", "device", "train")
    prepared = prepare(
        given["model"],
        given["input"],
        selection={**selection, "depth": given["depth"], "leaves": given["leaves"]},
        recipe=recipe,
        **{name: given[name] for name in run},
    )
    word = prepared.loaded.word
    return replace(prepared, plan=bind(prepared.module, values, gradients, word))


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
