"""The packages onnx and onnxruntime, which only ONNX files need."""

from __future__ import annotations

import importlib
from types import ModuleType

from hookscope.files.optional_packages import optional_package

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
    with optional_package(name, "onnx", "An ONNX file"):
        module = importlib.import_module(name)
    return module
