"""The kinds of tensor that can be recorded at a module, as the file and ``--what`` name them."""

from __future__ import annotations

OUTPUT, INPUT = "output", "input"
OUTPUT_GRAD, INPUT_GRAD, PARAM_GRAD = "output.grad", "input.grad", "param.grad"
OP, OP_GRAD = "op", "op.grad"  # what a function returned that was called between modules
ATTENTION = "attention"  # the weights of one call of attention
EMITTED = "emitted"  # what a hook of the user's own handed to hookscope.emit
CAM = "cam"  # where the score of a class comes from, as a map over the image
ATTRIBUTION = "attribution"  # the share of each entry of the model's input in that score

# Added to a kind and to the name of a tensor: as it was before an edit.
UNEDITED = ".unedited"

# What a user chooses, and which kind that is: of a forward pass, and of a backward pass.
VALUES = {"output": OUTPUT, "input": INPUT}
GRADIENTS = {"output": OUTPUT_GRAD, "input": INPUT_GRAD, "param": PARAM_GRAD}

# Of a gradient penalty, and of an optimizer's step.
SCORE_GRAD, PARAM_UPDATE = "score.grad", "param.update"
