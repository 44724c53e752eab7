# Nested outputs, shared and normed weights, a module called twice, evaluations, and a teacher.
import warnings

import torch
import torch.nn.functional as F
from reproducible import print_result, seed_all
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

warnings.simplefilter("ignore", FutureWarning)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 8, padding_idx=0)
        self.rnn = nn.LSTM(8, 8, num_layers=2, dropout=0.1, batch_first=True)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.branch = nn.Sequential(
            parametrizations.weight_norm(nn.Linear(8, 8)),
            nn.ReLU(inplace=True),
            parametrizations.spectral_norm(nn.Linear(8, 8)),  # with its own power iteration
            nn.utils.weight_norm(nn.Linear(8, 8)),  # the old one
        )
        self.decoder = nn.Linear(8, 30, bias=False)
        self.decoder.weight = self.embedding.weight

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.embedding(tokens), lengths, batch_first=True)
        states, (hidden, _) = self.rnn(packed)
        states, _ = pad_packed_sequence(states, batch_first=True)
        states = self.encoder(states, src_key_padding_mask=tokens == 0)
        mixed, _ = self.attention(states, states, states)
        mixed = self.branch(self.branch(mixed)) + hidden[-1].unsqueeze(1)
        return self.decoder(mixed), {"size": mixed.square().sum(-1), "both": [states]}


seed_all(19)
teacher, model = Tagger().eval(), Tagger()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
tokens, lengths = torch.randint(1, 30, (4, 7)), torch.tensor([7, 5, 4, 2])
for row, length in zip(tokens, lengths, strict=True):
    row[length:] = 0
losses = []
for _ in range(5):
    with torch.no_grad():
        wanted, _ = teacher(tokens, lengths=lengths)
    logits, extra = model(tokens, lengths=lengths)
    loss = F.kl_div(logits.log_softmax(-1), wanted.softmax(-1)) + 0.1 * extra["size"].mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        losses += [loss.item(), model(tokens, lengths)[0].double().sum().item()]
    model.train()
print_result(losses, teacher, model)
