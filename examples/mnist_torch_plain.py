"""A small network learns handwritten digits.

mnist_torch_plain.py is plain PyTorch, one process; mnist_torch.py is the same script for many workers:

    gkps run --servers 2 --workers 4 -- python3 examples/mnist_torch.py

The data: a folder with images and labels as IDX files, gzip or not, such as those of MNIST (of which the 10 000 of t10k are
taken), or worker/data of gkps (8x8).  Every fifth image is for testing."""
import argparse
import glob
import gzip
import os

import torch
from torch import nn


def read(folder, kind):
    """The numbers of the first IDX file of the folder with `kind` in its name: of all of MNIST, that of t10k."""
    found = sorted(glob.glob(os.path.join(folder, f"*{kind}*idx*")))
    if not found:
        raise FileNotFoundError(f"--data {folder}: no file *{kind}*idx* in this folder")
    path = found[0]
    with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
        data = file.read()
    shape = [int.from_bytes(data[4 + 4 * i:8 + 4 * i], "big") for i in range(data[3])]
    return torch.frombuffer(bytearray(data[4 + 4 * len(shape):]), dtype=torch.uint8).reshape(shape)


def batches(images, labels, size, steps, rank=0):
    """Batch `step` of a rank is a function of both: a process that was started again goes on with the right one."""
    for step in steps:
        chosen = torch.randint(len(labels), (size,), generator=torch.Generator().manual_seed(1000003 * rank + step))
        yield images[chosen], labels[chosen]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.path.join(os.path.dirname(__file__), "..", "worker", "data"))
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()

    images, labels = read(args.data, "images")[:, None].float(), read(args.data, "labels").long()
    images /= images.max()
    test = torch.arange(len(labels)) % 5 == 0

    torch.manual_seed(1)
    side = images.shape[-1]
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                          nn.Linear(8 * (side // 2) ** 2, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    for x, y in batches(images[~test], labels[~test], args.batch, range(args.steps)):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    with torch.no_grad():
        accuracy = (model(images[test]).argmax(1) == labels[test]).float().mean()
    print(f"accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
