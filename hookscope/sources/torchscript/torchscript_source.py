"""TorchScript files as a source of models, and an example input of one, read or guessed."""

from __future__ import annotations

import io
import logging
import pickle
import re
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.errors import EnvironmentFault, InputError, ModelError, cause
from hookscope.files.file_types import WRITE_AGAIN
from hookscope.files.hashes import BackgroundHash, blake3_of
from hookscope.files.pickle_scan import LONGEST_PICKLE, DamagedPickle
from hookscope.files.plain_pickle import OpaqueObject, PlainUnpickler
from hookscope.files.signal_safety import signal_safe, signal_safe_contextmanager
from hookscope.sources.checkpoint import check_archive_intact
from hookscope.sources.loaded import (
    BATCH,
    LIST,
    PAIR,
    Layout,
    LoadedModel,
    LoadRequest,
    WeightsInfo,
)
from hookscope.sources.meta import meta_copy
from hookscope.sources.torchscript import private
from hookscope.sources.torchscript.graph import Argument
from hookscope.sources.torchscript.module_builder import CPU, ScriptedModule, build_module
from hookscope.sources.torchscript.operators import REFUSED
from hookscope.sources.torchscript.script_archive import ArchiveTensor, ScriptArchive, read_code
from hookscope.sources.weights import load_over
from hookscope.specs.choices import FORWARD
from hookscope.specs.model_spec import TORCHSCRIPT, ModelSpec, end_sentence
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.nested import as_call, map_tensors

# Common sides of images, the most common first.
_SIDES = (224, 32, 28, 64, 96, 128, 256, 384, 512, 16, 8)
_LENGTHS = (1024, 16000, 128, 16)
_LAYOUTS = {("List[Tensor]",): LIST, ("Tensor", "Tensor"): PAIR}  # by types of arguments

_WITH_TEXTS = "FORMAT_WITH_STRING_TABLE"
_MOST = 1 << 31  # lines, and characters of a source
log = logging.getLogger("hookscope")
_AGAIN = "Save it again with torch.jit.save, in the release of torch that wrote it."
# How code may name an operator of REFUSED: as a word, or in a string with escapes for getattr.
_NAMES_REFUSED = re.compile(
    rb"\b(%s)\b|getattr(?=.*\\)" % "|".join(name.partition("::")[2] for name in REFUSED).encode(),
    re.DOTALL,
)


@dataclass(frozen=True)
class ExampleInput:
    """The input of a model if the user gives none."""

    shape: tuple[int, ...] | None
    layout: Layout
    make: Callable[[], Any] | None
    text: str = ""


def find_example(module: nn.Module, archive: ScriptArchive, spec: str, method: str) -> ExampleInput:
    """Return the example input of ``module``; the module does not run before it is made."""
    traced = archive.traced_inputs(method)
    if traced is not None and all(isinstance(record, ArchiveTensor) for record in traced):
        if len(traced) == 1 and traced[0].storage.dtype.is_floating_point:
            return ExampleInput(traced[0].shape, BATCH, None)
        text = "noise, and zeros for integers, of the shapes it was traced with"

        def make() -> tuple[Tensor, ...]:
            return tuple(_noise(one.shape, one.storage.dtype) for one in traced)

        return ExampleInput(None, BATCH, make, text)
    layout = _LAYOUTS.get(tuple(argument.type.text for argument in _required(module)), BATCH)
    guess = cache(partial(_guess, module, layout, spec))
    text = "noise of a guessed shape (--shape sets another)"
    return ExampleInput(None, layout, lambda: guess().make(layout), text)


def _noise(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=dtype)
    if dtype is torch.bool:
        return torch.ones(shape, dtype=dtype)  # as a mask it hides nothing
    return torch.zeros(shape, dtype=dtype)


def _required(module: nn.Module) -> list[Argument]:
    """The required arguments of the method that a call runs."""
    assert isinstance(module, ScriptedModule)
    arguments = module._hookscope_signatures.get(module._hookscope_method, ())
    return [argument for argument in arguments if not argument.optional]


def _guess(module: nn.Module, layout: Layout, spec: str) -> ExampleCandidate:
    """Return the first likely shape with which the model runs on the meta device."""
    if layout is BATCH and [argument.type.text for argument in _required(module)] != ["Tensor"]:
        required = [f"{argument.name}: {argument.type.text}" for argument in _required(module)]
        takes = ", ".join(required) or "nothing"
        raise InputError(
            f"Cannot guess an input for {spec}, which takes {takes}.",
            "Call it from Python, with a tuple or a dict: hookscope.capture(FILE, input=(a, b))",
        )
    if layout is LIST:  # detectors read values, so a trial on meta fails
        return ExampleCandidate((3, 320, 320), torch.float32)
    candidates = list(_candidates(module))
    for candidate in candidates:
        if _runs(module, layout, candidate):
            return candidate
    if not candidates:
        raise InputError(
            f"Cannot tell from its weights what input {spec} expects.", "Give --shape or --input."
        )
    return candidates[0]


@dataclass(frozen=True)
class ExampleCandidate:
    """A shape and dtype that may be what a model takes."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def make(self, layout: Layout) -> Any:
        """Return the call value of this shape."""
        if self.dtype.is_floating_point:
            return layout.noise(self.shape, torch.initial_seed())  # the seed of the caller
        return torch.zeros(self.shape, dtype=self.dtype)


def _candidates(module: nn.Module) -> Iterator[ExampleCandidate]:
    """Shapes that fit the first weight, as the first layer most likely takes the input."""
    for owner in module.modules():
        weight = next((p for p in owner._parameters.values() if p is not None and p.ndim > 1), None)
        if weight is not None:
            break
    else:
        return
    channels = weight.shape[1]
    if "Embedding" in type(owner).__name__:
        yield ExampleCandidate((1, 8), torch.int64)
    elif weight.ndim == 2:
        yield ExampleCandidate((1, channels), weight.dtype)
        yield ExampleCandidate((1, 8, channels), weight.dtype)
    elif weight.ndim == 3:
        yield from (ExampleCandidate((1, channels, length), weight.dtype) for length in _LENGTHS)
    elif weight.ndim == 4:
        yield from (ExampleCandidate((1, channels, side, side), weight.dtype) for side in _SIDES)
    elif weight.ndim == 5:
        yield from (
            ExampleCandidate((1, channels, frames, side, side), weight.dtype)
            for frames in (16, 8)
            for side in (112, 224)
        )


def _runs(module: nn.Module, layout: Layout, candidate: ExampleCandidate) -> bool:
    value = map_tensors(candidate.make(layout), lambda path, tensor: tensor.to("meta"))
    args, kwargs = as_call(value)
    try:
        # Prints of a trial are dropped.
        with grad_mode(False), signal_safe(redirect_stdout(io.StringIO())):
            meta_copy(module)(*args, **kwargs)
    except Exception:  # any error of a shape that does not fit
        return False
    return True


def check_debug_records(path: str) -> None:
    """Raise ModelError if a record of source lines is damaged."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if not name.endswith(".debug_pkl"):
                continue
            with archive.open(name) as record:
                data = record.read(LONGEST_PICKLE + 1)
            if len(data) > LONGEST_PICKLE or not _is_valid(data):
                raise ModelError(
                    f"{path!r} is damaged: its record {name!r} of source lines is not valid.",
                    WRITE_AGAIN,
                )


def _is_valid(data: bytes) -> bool:
    try:
        content = PlainUnpickler(io.BytesIO(data)).load()
    except DamagedPickle:
        return False
    texts: Any = None
    if isinstance(content, tuple) and content and isinstance(content[0], str):
        if len(content) != 3 or content[0] != _WITH_TEXTS:
            return False
        _, texts, content = content
        if not isinstance(texts, tuple) or not all(isinstance(text, str) for text in texts):
            return False
    return isinstance(content, tuple) and all(_is_entry(entry, texts) for entry in content)


def _is_entry(entry: Any, texts: tuple[str, ...] | None) -> bool:
    """Whether this is an offset in the code and its place in the source."""
    if not isinstance(entry, tuple) or len(entry) not in (2, 3) or not _are_numbers(entry[:1]):
        return False
    place = entry[1]
    if not isinstance(place, tuple) or len(place) != 3 or not _are_numbers(place[1:]):
        return False
    return texts is None or _is_source(place[0], len(texts))


def _is_source(source: Any, texts: int) -> bool:
    """Whether a source is made of texts that exist: their numbers, its file's, a line."""
    if not isinstance(source, tuple) or len(source) != 3 or not isinstance(source[0], OpaqueObject):
        return False
    if source[0].name != "torch.jit._pickle.build_intlist":
        return False
    pieces = source[0].arguments[0] if source[0].arguments else None
    return (
        isinstance(pieces, list)
        and _are_numbers((*pieces, *source[1:]))
        and all(number < texts for number in (*pieces, *((source[1],) if pieces else ())))
    )


def _are_numbers(values: tuple[Any, ...]) -> bool:
    return all(type(value) is int and 0 <= value < _MOST for value in values)


def load(request: LoadRequest) -> LoadedModel:
    """Open a scripted or traced model. Its tensors are loaded onto the CPU."""
    spec = request.spec
    request.refuse_arguments()
    check_archive_intact(spec.path)
    file_hash = BackgroundHash(blake3_of, spec.path)
    with _load_errors(spec.path):
        archive, module = _open(spec.path)
        example = find_example(module, archive, spec.text, request.model.method or FORWARD)
    _log_contents(spec, archive, module)
    return LoadedModel(
        module=module.eval(),
        spec=spec.text,
        name=spec.name,
        source=TORCHSCRIPT,
        weights=load_over(module, request.weights, WeightsInfo("as saved", file_hash)),
        shape=example.shape,
        layout=example.layout,
        own_example=example.make,
        example_text=example.text,
        example_spec="noise",
    )


def _open(path: str) -> tuple[ScriptArchive, ScriptedModule]:
    _check_no_file_access(path)
    check_debug_records(path)
    archive = ScriptArchive(path)
    if archive.mentions("ConstantMKLDNNTensor"):
        raise ModelError(
            f"{path!r} was saved after torch.jit.optimize_for_inference, which omits the weights"
            " from the file, so no program can run it.",
            "Save the model before optimize_for_inference.",
        )
    if archive.mentions("ops.torchvision."):
        _register_torchvision(path)
    with signal_safe(warnings.catch_warnings()), _higher_recursion_limit():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        return archive, build_module(private.open_archive(path, CPU), archive=archive)


def _check_no_file_access(path: str) -> None:
    """Raise ModelError if opening the file, which runs ``__setstate__``, may access others."""
    code = read_code(path)
    if b"__setstate__" in code and (match := _NAMES_REFUSED.search(code)):
        raise ModelError(
            f"Opening {path!r} would run its __setstate__, and its code names"
            f" {match[0].decode()!r}, which can read or write files.",
            "Save the model without that class's __setstate__, or give its source: FILE.py:NAME.",
        )


@contextmanager
def _load_errors(path: str) -> Iterator[None]:
    """Turn the errors of a damaged or foreign file into a ModelError."""
    try:
        yield
    except RecursionError as error:
        raise ModelError(
            f"{path!r} cannot be opened: its code is nested too deeply.",
            "Split the function that has many branches, and save the model again.",
        ) from error
    except MemoryError as error:
        raise ModelError(f"{path!r} is damaged, or does not fit into memory.", _AGAIN) from error
    except RuntimeError as error:
        # The loader quotes code after the first line.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        first = end_sentence(lines[0] if lines else type(error).__name__)
        raise ModelError(f"{path!r} cannot be opened: {first}", _hint(first)) from error
    except (LookupError, ValueError, pickle.UnpicklingError) as error:
        raise ModelError(f"{path!r} is damaged: {end_sentence(cause(error))}", _AGAIN) from error


@signal_safe_contextmanager
def _higher_recursion_limit() -> Iterator[None]:
    """Allow deeper recursion, as deep as branches in the graph are nested."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, 5000))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def _hint(text: str) -> str:
    if "Unknown builtin op" in text or "Unknown type name" in text:
        return (
            "It uses operators of another library. Import that library in Python, and call"
            " hookscope from there."
        )
    return _AGAIN


def _register_torchvision(path: str) -> None:
    """Import torchvision for the operators that it registers."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError) as error:
        raise EnvironmentFault(
            f"{path!r} uses operators of torchvision, which cannot be imported: {error}",
            "Install it: pip install torchvision.",
        ) from error


def _log_contents(spec: ModelSpec, archive: ScriptArchive, module: ScriptedModule) -> None:
    log.info("weights: as saved in %s", spec.path)
    if archive.extra:
        log.info("extra files in %s: %s", spec.path, ", ".join(archive.extra))
    if module._hookscope_frozen:
        log.info(
            "%s contains no modules, as after torch.jit.freeze; the operators of its graph are"
            " used as layers, named by kind and order, such as conv2d_1",
            spec.path,
        )
