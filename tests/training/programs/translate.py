# An encoder and a decoder: the encoder runs once, the decoder for each token.
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 12)
        self.gru = nn.GRU(12, 12, batch_first=True)

    def forward(self, tokens):
        return self.gru(self.embedding(tokens))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 12)
        self.gru = nn.GRUCell(12, 12)
        self.out = nn.Linear(12, 30)

    def forward(self, token, state):
        state = self.gru(self.embedding(token), state)
        return self.out(state), state


def translate(encoder, decoder, tokens, length=6):
    _, state = encoder(tokens)
    state, token, words = state[0], torch.ones(1, dtype=torch.long), []
    for _ in range(length):
        logits, state = decoder(token, state)
        token = logits.argmax(-1)
        words.append(token.item())
    return words


torch.manual_seed(0)
with torch.no_grad():
    print(translate(Encoder(), Decoder(), torch.tensor([[4, 9, 2]])))
