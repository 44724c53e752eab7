"""A model in a test, compared with the fingerprint that the repository has of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from hookscope.execution.prepare import Prepared, prepare
from hookscope.execution.provenance import describe_run
from hookscope.file_analysis.fingerprint_diff import compare_fingerprints
from hookscope.model_analysis.fingerprint_run import run_once
from hookscope.results.fingerprint_diff import FILE_AND_MODEL, FingerprintDiff
from hookscope.specs.request import InputRequest, ModelRequest, Request
from hookscope.specs.tolerances import ExactDiffOptions
from hookscope.stores.fingerprint_file import open_fingerprint


class GoldenModel:
    """A model with its input, as a test has them: each module keeps its mode, dtype and device."""

    def __init__(self, model: nn.Module, input: Any, test: str) -> None:
        request = Request("fingerprint", ModelRequest(model), input=InputRequest(input))
        self._prepared: Prepared = replace(prepare(request), train=None)
        self._metadata = {**describe_run("fingerprint", self._prepared, {}), "test": test}

    def compare(self, path: Path) -> FingerprintDiff:
        """Run the model once, and compare it with the file; a tensor of one alone differs."""
        known = open_fingerprint(path)
        found = run_once(self._prepared, self._metadata, known)
        return compare_fingerprints(known, found, ExactDiffOptions(strict=True), FILE_AND_MODEL)

    def write(self, path: Path) -> None:
        """Make the fingerprint, and write it to a file."""
        # A test that only compares does not wait for the import of what this needs.
        from hookscope.model_analysis.fingerprint_rounding import make_fingerprint

        made = make_fingerprint(self._prepared, self._metadata)
        path.parent.mkdir(parents=True, exist_ok=True)
        made.save(path)
