"""Every graph of the conformance tests of the package onnx runs as in a bare session."""

from __future__ import annotations

import pytest

from tests.sources.onnx.conformance import KINDS, examine_in_processes

# The numbers of outputs that are compared, at least: those of onnx 1.23 less a tenth.
COMPARED = dict(zip(KINDS, (1850, 13, 50, 24, 8), strict=True))


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_every_graph_gives_the_values_of_a_bare_session_or_an_error_for_users(kind: str) -> None:
    found = examine_in_processes(kind)
    assert {case.name: case.problems for case in found if case.problems} == {}
    assert sum(case.equal for case in found) >= COMPARED[kind]
