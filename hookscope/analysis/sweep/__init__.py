"""One edit at each layer in turn: the runs, what they measure, and what they need not compute."""
