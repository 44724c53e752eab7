"""Questions to a model: class activation maps, attribution, lens, sweep, health, differences."""
