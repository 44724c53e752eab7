"""Train the small language model in ``sample_models/capitals``: seconds on a CPU.

    python train_capitals.py FOLDER
    hookscope lens hf:capitals --input "text:the capital of France is" --target " Paris"

It is a Llama of four layers that learns 16 capitals from sentences such as "we know that the
capital of France is Paris". The words before the country vary, so that the position of the country
does, and the model has to move what it knows of the country to the last position.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CAPITALS = {
    **{"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Germany": "Berlin"},
    **{"Japan": "Tokyo", "China": "Beijing", "Egypt": "Cairo", "Kenya": "Nairobi"},
    **{"Peru": "Lima", "Cuba": "Havana", "Norway": "Oslo", "Greece": "Athens"},
    **{"Poland": "Warsaw", "Russia": "Moscow", "Iraq": "Baghdad", "Canada": "Ottawa"},
}
BEGINNINGS = ("", "we know that ", "they say that ", "yes , ", "everybody knows that ")
SENTENCES = ("the capital of {} is", "the main city of {} is", "the government of {} sits in")
FILLERS = ("and it is warm .", "and it rains .", ".")
STEPS, BATCH = 600, 64

torch.set_num_threads(1)  # faster for such small tensors


def sentences() -> list[tuple[str, str]]:
    """Return every beginning of a sentence with the capital that ends it."""
    return [
        (f"{beginning}{sentence.format(country)}", capital)
        for country, capital in CAPITALS.items()
        for beginning in BEGINNINGS
        for sentence in SENTENCES
    ]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of whole words, which writes a space before each."""
    words = {word for text, capital in sentences() for word in f"{text} {capital}".split()}
    words |= {word for text in FILLERS for word in text.split()}
    vocabulary = {"<pad>": 0, "<unk>": 1, **{f"▁{w}": n + 2 for n, w in enumerate(sorted(words))}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", model_max_length=32
    )


def train(tokenizer: PreTrainedTokenizerFast) -> Any:
    """Return the trained model, the same on every run."""
    torch.manual_seed(0)
    source = random.Random(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=32,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    model: Any = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    facts = sentences()
    for _ in range(STEPS):
        chosen = source.sample(facts, BATCH)
        texts = [f"{text} {capital} {source.choice(FILLERS)}" for text, capital in chosen]
        batch = tokenizer(texts, padding=True, return_tensors="pt")
        ids, mask = batch["input_ids"], batch["attention_mask"]
        labels = ids.masked_fill(mask == 0, -100)
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def main() -> None:
    """Write the model and its tokenizer into the folder named on the command line."""
    folder = Path(sys.argv[1])
    tokenizer = make_tokenizer()
    model = train(tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    right = 0
    for text, capital in sentences():
        logits = model(**tokenizer(text, return_tensors="pt")).logits[0, -1]
        right += str(tokenizer.decode(logits.argmax())).strip() == capital
    print(f"{right} of {len(sentences())} capitals are right; wrote {folder}")


if __name__ == "__main__":
    main()
