"""Two recordings, or two models on one input, held against each other tensor by tensor."""
