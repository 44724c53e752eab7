# A model that runs in a process of its own, and one that runs here.
import multiprocessing

import torch
from torch import nn


def work(numbers, queue):
    torch.manual_seed(1)
    model = nn.Linear(3, 2)
    with torch.no_grad():
        queue.put(model(torch.tensor(numbers)).tolist())


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=work, args=([1.0, 2.0, 3.0], queue))
    process.start()
    print(queue.get())
    process.join()
    torch.manual_seed(0)
    here = nn.Linear(3, 1)
    with torch.no_grad():
        print(here(torch.ones(3)).item())
