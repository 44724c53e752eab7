# Rollouts of reinforcement learning with an update of the policy after each of them.
import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
value = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], lr=1e-2)
for episode in range(2):
    state, losses = torch.randn(4), []
    for _ in range(3):
        choice = torch.distributions.Categorical(logits=policy(state))
        action = choice.sample()
        reward = 1.0 if action == (state[0] > 0) else 0.0
        advantage = reward - value(state)
        losses.append((advantage.pow(2) - choice.log_prob(action) * advantage.detach()).sum())
        state = state.roll(1) * 0.9
    optimizer.zero_grad()
    loss = torch.stack(losses).sum()
    loss.backward()
    optimizer.step()
    print(episode, loss.item())
