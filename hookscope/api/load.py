"""Load a model by its word, and a capture from its file."""

from __future__ import annotations

from hookscope.hooks.capture import Capture
from hookscope.sources import loading

load_model = loading.load
load = Capture.load
