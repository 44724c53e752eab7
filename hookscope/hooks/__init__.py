"""Hooks on named modules: selection, the registry, the recorder, the tracer, edits, user hooks."""
