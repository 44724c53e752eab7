"""TorchScript files as a source of models."""

from __future__ import annotations

import io
import logging
import pickle
import re
import sys
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hookscope.errors import EnvironmentFault, ModelError, RequestError, cause
from hookscope.files.background_hash import BackgroundHash
from hookscope.files.file_types import WRITE_AGAIN
from hookscope.files.pickle_scan import LONGEST_PICKLE, DamagedPickle
from hookscope.files.plain_pickle import OpaqueObject, PlainUnpickler
from hookscope.files.signal_safety import signal_safe, signal_safe_contextmanager
from hookscope.files.weight_files import blake3_of
from hookscope.sources import weights as weight_files
from hookscope.sources.checkpoint import check_archive_intact
from hookscope.sources.loaded import LoadedModel, WeightsInfo, WeightsRequest
from hookscope.sources.torchscript import private
from hookscope.sources.torchscript.example_input import find_example
from hookscope.sources.torchscript.module_builder import ScriptedModule, build_module
from hookscope.sources.torchscript.operators import REFUSED
from hookscope.sources.torchscript.script_archive import ScriptArchive, read_code
from hookscope.specs.catalog import no_weights_by_name
from hookscope.specs.model_spec import TORCHSCRIPT, ModelSpec, end_sentence, is_weights_file

_WITH_TEXTS = "FORMAT_WITH_STRING_TABLE"
_MOST = 1 << 31  # lines, and characters of a source

log = logging.getLogger("hookscope")
CPU = torch.device("cpu")
_AGAIN = "Save it again with torch.jit.save, in the release of torch that wrote it."
# How code may name an operator of REFUSED: as a word, or in a string with escapes for getattr.
_NAMES_REFUSED = re.compile(
    rb"\b(%s)\b|getattr(?=.*\\)" % "|".join(name.partition("::")[2] for name in REFUSED).encode(),
    re.DOTALL,
)


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
    """Whether a source is made of texts that exist: their numbers, that of its file, a line."""
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


def load(
    spec: ModelSpec,
    *,
    weights: WeightsRequest,
    model_args: dict[str, Any],
    seed: int,
    meta: bool,
    method: str,
) -> LoadedModel:
    """Open the file that ``spec`` names; see ``hookscope.sources.model_loader.load``.

    Tensors are loaded onto the CPU. ``meta`` is ignored: the file has the values.
    """
    if model_args:
        raise RequestError(
            f"{spec.text!r} contains a model that is already built, which takes no arguments.",
            "Leave out --model-arg.",
        )
    check_archive_intact(spec.path)
    file_hash = BackgroundHash(blake3_of, spec.path)
    with _load_errors(spec.path):
        archive, module = _open(spec.path)
        example = find_example(module, archive, spec.text, method)
    _log_contents(spec, archive, module)
    info = WeightsInfo("as saved", file_hash)
    if weights.spec != "random":
        if not is_weights_file(weights.spec):
            raise no_weights_by_name(weights.spec)
        info = weight_files.load_file_into(module, weights)
    return LoadedModel(
        module=module.eval(),
        spec=spec.text,
        name=spec.name,
        source=TORCHSCRIPT,
        weights=info,
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
    """Raise ModelError if opening the file may read or write other files.

    PyTorch's reader runs the scripted ``__setstate__`` of a class while it opens the file.
    """
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
        first = end_sentence(_first_line(error))
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


def _first_line(error: RuntimeError) -> str:
    """The first line of an error of the loader, without the code it quotes."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


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
