"""A capture of a folder by hand: ``transformers_by_hand.py FOLDER TOKENS LAYER FILE``."""

import sys

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

folder, tokens, layer, out = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
kept = {}
model.get_submodule(layer).register_forward_hook(
    lambda module, args, output: kept.update({layer: output.clone()})
)
with torch.no_grad():
    model(input_ids=torch.from_numpy(np.load(tokens)))
save_file(kept, out)
