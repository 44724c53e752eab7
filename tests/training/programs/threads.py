# Two models in two threads.
import threading

import torch
from torch import nn

torch.manual_seed(0)
small = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
large = nn.Sequential(nn.Linear(4, 64), nn.Sigmoid(), nn.Linear(64, 2))
results = {}


def work(name, model, inputs):
    with torch.no_grad():
        results[name] = [model(one).tolist() for one in inputs]


workers = [
    threading.Thread(target=work, args=("small", small, torch.randn(4, 2, 4))),
    threading.Thread(target=work, args=("large", large, torch.randn(3, 2, 4))),
]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
print(results["small"], results["large"])
