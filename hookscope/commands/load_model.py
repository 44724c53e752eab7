"""Load a model by its spec, as every command does."""

from __future__ import annotations

from hookscope.sources.model_loader import load as load_model

__all__ = ["load_model"]
