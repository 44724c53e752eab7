"""Fixtures of these tests."""

import gc
from collections.abc import Iterator

import pytest

from tests.training.forked import both_ways as both_ways
from tests.training.forked import fork_server as fork_server
from tests.training.forked import watched as watched
from tests.training.forked import work as work


@pytest.fixture(scope="module")
def older_objects() -> Iterator[None]:
    """What exists before the tests of a file is not looked through each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def no_other_models(older_objects: None) -> None:
    """The watcher finds all modules that exist, so those of other tests must be gone."""
    gc.collect()
