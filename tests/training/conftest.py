"""Fixtures of these tests. Sample scripts are left out: pytest would import, and so run, each."""

import gc

import pytest

from tests.training.forked_scripts import both_ways as both_ways
from tests.training.forked_scripts import fork_server as fork_server
from tests.training.forked_scripts import watched as watched
from tests.training.forked_scripts import work as work

collect_ignore = ["scripts", "programs"]


@pytest.fixture
def no_other_models() -> None:
    """The watcher finds all modules that exist, so those of other tests must be gone."""
    gc.collect()
