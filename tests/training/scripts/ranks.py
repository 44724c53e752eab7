"""Trains a small network on each rank, each with its part of the data: with DDP, or FSDP2."""

import argparse
import hashlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--sharded", action="store_true")
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--norms", help="folder for the norms of the full tensors of each step")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--die-at", type=int, default=-1, help="step at which rank 1 ends")
parser.add_argument("--only-first-time", action="store_true")
parser.add_argument("--idle", action="store_true", help="the last rank does not train")
args = parser.parse_args()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 6)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 6)) for _ in range(2)
        )
        self.head = nn.Linear(6, 1)  # which is on rank 0 alone, if it is sharded

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def full(tensor):
    return (tensor.detach().full_tensor() if args.sharded else tensor.detach()).clone()


def say(text):
    """Print a line with one call, which the other rank cannot interrupt."""
    print(f"{text}\n", end="", flush=True)


def wrapped(net, group):
    if args.sharded:
        for block in net.blocks:
            fully_shard(block)
        return fully_shard(net)
    if args.compile:
        net = torch.compile(net, backend="aot_eager")
    return DistributedDataParallel(net, process_group=group)


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group([0]) if args.idle else None
    if args.idle and rank == size - 1:
        say(f"rank {rank} waits")
        dist.barrier()
        return
    torch.manual_seed(0)
    net = Net()
    model = wrapped(net, group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(100 + rank)  # each rank has its own data
    norms = []
    for step in range(args.steps):
        restarted = args.only_first_time and os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
        if rank == 1 and step == args.die_at and not restarted:
            os._exit(3)
        inputs, targets = torch.randn(5, 8), torch.randn(5, 1)
        optimizer.zero_grad()
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        if args.norms:
            before = {name: full(weight) for name, weight in net.named_parameters()}
            grads = {name: full(weight.grad) for name, weight in net.named_parameters()}
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if args.norms:
            after = {name: full(weight) for name, weight in net.named_parameters()}
            norms.append(
                {
                    name: (grads[name].norm(), old.norm(), (after[name] - old).norm())
                    for name, old in before.items()
                }
            )
        say(f"rank {rank} step {step} loss {loss.item()!r}")
    parts = [w.to_local() if args.sharded else w for w in model.parameters()]
    held = b"".join(part.detach().numpy().tobytes() for part in parts)
    state = torch.get_rng_state().numpy().tobytes()
    default = dist.distributed_c10d._get_default_group()
    say(f"rank {rank} collectives {default._get_sequence_number_for_group()}")
    say(f"rank {rank} weights {hashlib.sha256(held + state).hexdigest()}")
    if args.norms:
        torch.save(norms, os.path.join(args.norms, f"rank{rank}.pt"))
    if args.idle:
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
