"""Load a model by its word, and a capture from its file."""

from __future__ import annotations

from hookscope.hooks.capture import Capture
from hookscope.sources import model_loader

load_model = model_loader.load
load = Capture.load
