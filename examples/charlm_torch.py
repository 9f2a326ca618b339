"""A small transformer learns to write like a text file, letter by letter, with AdamW.

    gkps run --servers 2 --workers 4 --density 0.01 -- python3 examples/charlm_torch.py FILE

The last tenth of the text is kept for the loss that is reported at the end."""
import argparse

import gkps.torch
import torch
from torch import nn


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x):
        batch, length, width = x.shape
        q, k, v = (part.reshape(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        score = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = score.masked_fill(future, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, letters, context, width, heads, layers):
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, text):
        x = self.letter(text) + self.place(torch.arange(text.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_of(model, text, starts, context):
    """Mean loss of the letters behind each start."""
    window = text[starts[:, None] + torch.arange(context + 1)]
    scores = model(window[:, :-1])
    return nn.functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), window[:, 1:].reshape(-1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=16, help="windows of each worker and step")
    parser.add_argument("--context", type=int, default=64, help="letters of a window")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    with open(args.file, encoding="utf-8") as file:
        letters = file.read()
    alphabet = {letter: number for number, letter in enumerate(sorted(set(letters)))}
    text = torch.tensor([alphabet[letter] for letter in letters])
    kept = len(text) // 10
    train, test = text[:-kept], text[-kept:]

    torch.manual_seed(args.seed)
    model = Model(len(alphabet), args.context, args.width, args.heads, args.layers)
    # As usual, biases and norms do not decay.
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    inner = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}], lr=args.lr)
    optimizer = gkps.torch.Optimizer(model, inner)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
    for _ in range(optimizer.start_step):
        warmup.step()

    for step in range(optimizer.start_step, args.steps):
        generator = torch.Generator().manual_seed((args.seed * 1009 + optimizer.rank) * 1000003 + step)
        starts = torch.randint(len(train) - args.context - 1, (args.batch,), generator=generator)
        optimizer.zero_grad()
        loss = loss_of(model, train, starts, args.context)
        loss.backward()
        optimizer.step(samples=args.batch, loss=loss)
        warmup.step()
        if optimizer.finished:  # gkps run --steps
            break

    if optimizer.rank == 0:
        with torch.no_grad():
            starts = torch.arange(0, len(test) - args.context - 1, args.context)[:256]
            optimizer.report(loss=loss_of(model, test, starts, args.context))


if __name__ == "__main__":
    main()
