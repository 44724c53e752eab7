"""Trains the same small network on each rank, each with its part of the data."""

import argparse
import hashlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--gradients", help="folder for the gradients that each step has")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--die-at", type=int, default=-1, help="step at which rank 1 ends")
parser.add_argument("--only-first-time", action="store_true")
parser.add_argument("--idle", action="store_true", help="the last rank does not train")
args = parser.parse_args()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.act = nn.ReLU()

    def forward(self, x):
        return x + self.act(self.linear(x))


def say(text):
    """Print a line with one call, which the other rank cannot interrupt."""
    print(f"{text}\n", end="", flush=True)


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    if args.idle and rank == size - 1:
        dist.new_group([0])
        say(f"rank {rank} waits")
        dist.barrier()
        return
    group = dist.new_group([0]) if args.idle else None
    torch.manual_seed(0)
    net = nn.Sequential(Block(), Block(), nn.Linear(8, 3))
    if args.compile:
        net = torch.compile(net, backend="aot_eager")
    model = DistributedDataParallel(net, process_group=group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(100 + rank)  # each rank has its own data
    grads = []
    for step in range(args.steps):
        restarted = args.only_first_time and os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
        if rank == 1 and step == args.die_at and not restarted:
            os._exit(3)
        inputs, labels = torch.randn(5, 8), torch.randint(0, 3, (5,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        grads.append({name: weight.grad.clone() for name, weight in net.named_parameters()})
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        say(f"rank {rank} step {step} loss {loss.item()!r}")
    weights = b"".join(weight.detach().numpy().tobytes() for weight in model.parameters())
    state = torch.get_rng_state().numpy().tobytes()
    group = dist.distributed_c10d._get_default_group()
    say(f"rank {rank} collectives {group._get_sequence_number_for_group()}")
    say(f"rank {rank} weights {hashlib.sha256(weights + state).hexdigest()}")
    if args.gradients:
        torch.save(grads, os.path.join(args.gradients, f"rank{rank}.pt"))
    if args.idle:
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
