"""Comparison of a model with the fingerprint that was made of it."""

from __future__ import annotations

from typing import Any

from hookscope.execution.prepare import prepare
from hookscope.execution.provenance import describe_run
from hookscope.file_analysis.fingerprint_diff import compare_fingerprints
from hookscope.model_analysis.fingerprint_run import run_once
from hookscope.results.fingerprint import ModelFingerprint
from hookscope.results.fingerprint_diff import FILE_AND_MODEL, FingerprintDiff
from hookscope.specs.fingerprint_request import FingerprintRequest
from hookscope.specs.tolerances import ExactDiffOptions


def compare_model_with_fingerprint(
    known: ModelFingerprint, request: FingerprintRequest
) -> FingerprintDiff:
    """Run a model once, and compare it with a fingerprint, which is the reference."""
    options: Any = known.metadata.get("options")
    request = request.with_options(options if isinstance(options, dict) else {})
    run = request.of_a.requests[0]
    prepared = prepare(run)
    found = run_once(prepared, describe_run("fingerprint", prepared, run.chosen()), known)
    exact = ExactDiffOptions(request.layers, strict=request.strict)
    return compare_fingerprints(known, found, exact, FILE_AND_MODEL)
