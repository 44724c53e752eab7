"""The packages onnx and onnxruntime, which only ONNX files need."""

from __future__ import annotations

import importlib
from types import ModuleType

from hookscope.errors import EnvironmentFault

INSTALL = 'Install it: python -m pip install "hookscope[onnx]"'
SILENT = 4  # the severity of onnxruntime's log above which nothing is printed: errors are raised


def import_onnx() -> ModuleType:
    """Return the package ``onnx``."""
    return _import("onnx")


def import_onnxruntime() -> ModuleType:
    """Return the package ``onnxruntime``, which prints nothing from then on."""
    runtime = _import("onnxruntime")
    runtime.set_default_logger_severity(SILENT)
    return runtime


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == name
        reason = "is not installed" if missing else f"cannot be imported: {error}"
        raise EnvironmentFault(
            f"An ONNX file needs the package {name}, which {reason}.", INSTALL
        ) from error
