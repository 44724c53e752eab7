# Recurrent and attention layers, whose outputs are nested, and an evaluation between the steps.
import torch
from reproducible import print_result, seed_all
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 8, padding_idx=0)
        self.rnn = nn.LSTM(8, 8, num_layers=2, dropout=0.1, batch_first=True)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.embedding(tokens), lengths, batch_first=True)
        states, (hidden, _) = self.rnn(packed)
        states, _ = pad_packed_sequence(states, batch_first=True)
        states = self.encoder(states, src_key_padding_mask=tokens == 0)
        mixed, _ = self.attention(states, states, states)
        return self.head(mixed + hidden[-1].unsqueeze(1))


seed_all(19)
model = Tagger()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
tokens, lengths = torch.randint(1, 30, (4, 7)), torch.tensor([7, 5, 4, 2])
for row, length in zip(tokens, lengths, strict=True):
    row[length:] = 0
losses = []
for _ in range(5):
    loss = nn.functional.cross_entropy(model(tokens, lengths).flatten(0, 1), tokens.flatten() % 4)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        losses += [loss.item(), model(tokens, lengths).double().sum().item()]
    model.train()
print_result(losses, model)
