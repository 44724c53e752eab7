"""From a request to one run of a model: forward, backward, losses, an optimizer's step."""
