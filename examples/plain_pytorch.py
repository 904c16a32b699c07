"""zoo's parts in a training loop of plain PyTorch: no configuration file, no run folder.

An nGPT is trained by PyTorch's AdamW, with a schedule of PyTorch; `zoo.attach` keeps its weights on the
sphere. Then Amos trains a module that consists of PyTorch's own layers.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from zoo import Amos, attach, build_model, generate


def language_model(tokens: torch.Tensor) -> None:
    """Train a small nGPT on (batch, time) int64 tokens below 128."""
    model = build_model("ngpt", vocab_size=128, d_model=32, n_layers=2, n_heads=2, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.0)
    attach(optimizer, model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=60)
    for step in range(60):
        loss = model.loss(tokens[:, :-1], tokens[:, 1:])
        loss.total.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 20 == 0:
            print(f"nGPT, step {step}: {loss.cross_entropy.item():.3f} nats per token")
    continued = generate(model, tokens[:1, :8], 16)
    print("".join(map(chr, continued[0].tolist())))


def classifier() -> None:
    """Train layers of PyTorch with Amos, which infers the scale of every weight from its layer."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, nhead=2, dim_feedforward=32, batch_first=True, dropout=0.0)
    model = nn.Sequential(nn.Embedding(32, 16), layer, nn.Flatten(), nn.Linear(16 * 8, 2))
    optimizer = Amos.for_module(model, lr=0.02)
    words = torch.randint(32, (64, 8))
    labels = (words.sum(1) % 2).long()
    for step in range(60):
        loss = F.cross_entropy(model(words), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            print(f"classifier, step {step}: {loss.item():.3f} nats per example")


if __name__ == "__main__":
    text = "the quick brown fox jumps over the lazy dog. " * 30
    language_model(torch.tensor([ord(letter) for letter in text[: 16 * 65]]).view(16, 65))
    classifier()
