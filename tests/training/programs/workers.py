# Two models in two threads, and one that a coroutine calls.
import asyncio
import threading

import torch
from torch import nn

torch.manual_seed(0)
app = {"model": nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 2)).eval()}
small = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
large = nn.Sequential(nn.Linear(4, 64), nn.Sigmoid(), nn.Linear(64, 2))
results = {}


async def answer(numbers):
    with torch.no_grad():
        return app["model"](torch.tensor([numbers])).tolist()


async def serve():
    for numbers in ([1.0, 2.0, 3.0], [0.0, -1.0, 0.5]):
        print(await asyncio.create_task(answer(numbers)))


def work(name, model, inputs):
    with torch.no_grad():
        results[name] = [model(one).tolist() for one in inputs]


asyncio.run(serve())
workers = [
    threading.Thread(target=work, args=("small", small, torch.randn(4, 2, 4))),
    threading.Thread(target=work, args=("large", large, torch.randn(3, 2, 4))),
]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
print(results["small"], results["large"])
