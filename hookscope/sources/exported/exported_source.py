"""Models saved by ``torch.export``, opened as ordinary modules with their original names."""

from __future__ import annotations

import importlib
import logging
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial

import torch
from torch import Tensor, nn

from hookscope.errors import EnvironmentFault, ModelError
from hookscope.files.hashes import BackgroundHash, blake3_of
from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.sources.checkpoint import check_archive_intact
from hookscope.sources.exported import pt2_archive
from hookscope.sources.exported.program_modules import build_module
from hookscope.sources.loaded import LoadedModel, LoadRequest, WeightsInfo
from hookscope.specs.model_spec import EXPORTED, end_sentence
from hookscope.tensors.nested import detach_clone

log = logging.getLogger("hookscope")

_LOGGERS = (
    *("torch.export", "torch.export.pt2_archive._package", "torch.export.unflatten"),
    "torch._export.serde.serialize",
)
# Output types of transformers. No other module is imported because a file names it.
_OUTPUT = re.compile(r"(transformers\.(?:modeling_outputs|models\.\w+\.modeling_\w+))\.\w+")
_ENFORCED = re.compile(r"^\[enforce fail at \S+\] ?\. ")  # of the reader in C++
_LOGGED = "when deserializing the saved file"  # torch raises this, and logs the reason


def load(request: LoadRequest) -> LoadedModel:
    """Open an exported program. Pickles that run code, and compiled code, need ``trust``."""
    spec = request.spec
    request.refuse_building("an exported program")
    program = _open(spec.path, request.model.trust)
    file_hash = BackgroundHash(blake3_of, spec.path)
    args, kwargs = program.example_inputs or ((), {})
    copies = partial(detach_clone, (args, kwargs))
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    only_input = tensors[0] if len(tensors) == len(args) == 1 and not kwargs else None
    log.info("weights: as saved in %s", spec.path)
    return LoadedModel(
        module=to_module(program),
        spec=spec.text,
        name=spec.name,
        source=EXPORTED,
        weights=WeightsInfo("as saved", file_hash),
        shape=tuple(only_input.shape) if only_input is not None else None,
        own_example=copies if program.example_inputs else None,
        example_text="the inputs stored in the file",
        example_spec="example inputs",
    )


def to_module(program: torch.export.ExportedProgram) -> nn.Module:
    """Return an exported program, with copied weights, as a module whose layers can be hooked."""
    with _silenced():
        return build_module(program)


def _open(path: str, trust: bool) -> torch.export.ExportedProgram:
    check_archive_intact(path)
    with open(path, "rb") as file:
        try:
            pt2_archive.check_layout(file, path)
            pt2_archive.check_sizes(file, path)
            if not trust:
                pt2_archive.check_no_code(file, path)
            pt2_archive.check_operators(file, path)
            _register_output_types(pt2_archive.container_types(file), path)
        except RecursionError as exc:
            raise ModelError(
                f"The program in {path!r} cannot be opened: it is nested too deeply.",
                "Export it again.",
            ) from exc
        with _silenced() as logged:
            try:
                return torch.export.load(file)
            except Exception as exc:  # torch raises nearly any type for a damaged file
                raised = _LOGGED not in str(exc) or not logged
                cause = exc if raised else logged[-1]
                text = _ENFORCED.sub("", str(cause).strip().partition("\n")[0])
                text = text.partition(". ")[0]
                hint = f"Export it again, with torch {torch.__version__.partition('+')[0]}."
                if "is not registered" in text:
                    hint = (
                        "Importing the package that defines it registers it, so call hookscope from"
                        " Python after that import."
                    )
                raise ModelError(
                    f"The program in {path!r} cannot be opened:"
                    f" {end_sentence(text or type(cause).__name__)}",
                    hint,
                ) from cause


def _register_output_types(types: Iterable[str], path: str) -> None:
    """Import the modules of transformers that register these types of outputs."""
    for module in sorted({match[1] for name in types if (match := _OUTPUT.fullmatch(name))}):
        try:
            importlib.import_module(module)
        except (ImportError, RuntimeError) as error:
            raise EnvironmentFault(
                f"The program in {path!r} uses {module}, which cannot be imported: {error}",
                "Install it: pip install transformers.",
            ) from error


@signal_safe_contextmanager
def _silenced() -> Iterator[list[BaseException]]:
    """Silence the warnings and the log of torch.export; yield the errors that it logs."""
    logged: list[BaseException] = []

    def collect(record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1]:
            logged.append(record.exc_info[1])
        return False

    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore")
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            logger.addFilter(collect)
            stack.callback(logger.removeFilter, collect)
        yield logged
