"""A sparsifier of one's own: which gradients are pushed is decided here, by push_sparse().

    gkps run --servers 2 --workers 4 -- python3 examples/sparsifier.py

Each worker pushes, of each tensor, the entries whose magnitude is above a multiple of the tensor's mean, as long as they are
no more than the density allows, but at least one; what is not pushed stays in a residual of our own, which survives with the step because it
is the aux memory.  Use it as a frame for a method that you want to try."""
import argparse
import os

import gkps
import torch
from mnist_torch_plain import batches, read
from torch import nn


def select(values, most, factor):
    """Places of the entries to push, rising: above `factor` times the mean magnitude, or the largest; `most` of them at most."""
    size = values.abs()
    places = (size > factor * size.mean()).nonzero().reshape(-1)
    if len(places) == 0:
        return size.argmax().reshape(1)
    if len(places) > most:
        places = places[size[places].topk(most).indices].sort().values
    return places


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.path.join(os.path.dirname(__file__), "..", "worker", "data"))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--density", type=float, default=0.02)
    parser.add_argument("--factor", type=float, default=3.0)
    args = parser.parse_args()

    images, labels = read(args.data, "images").float(), read(args.data, "labels").long()
    images /= images.max()
    test = torch.arange(len(labels)) % 5 == 0

    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(images[0].numel(), 200), nn.ReLU(), nn.Linear(200, 10))
    params = [parameter.detach() for parameter in model.parameters()]
    residual = torch.zeros(sum(p.numel() for p in params))
    parts = residual.split([p.numel() for p in params])
    most = [max(1, int(args.density * p.numel())) for p in params]  # none is left out; the largest gives what the others have more
    most[most.index(max(most))] -= max(0, sum(most) - int(args.density * len(residual)))

    with gkps.Worker(density=args.density, optimizer="momentum", lr=0.1, momentum=0.9) as worker:
        worker.tensors([(name, p, None) for (name, _), p in zip(model.named_parameters(), params)])
        worker.aux(residual)
        start = worker.start()
        for x, y in batches(images[~test], labels[~test], args.batch, range(start.step, args.steps), start.rank):
            model.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            selection = []
            for parameter, part, room in zip(model.parameters(), parts, most):
                part += parameter.grad.reshape(-1) * args.batch  # pushes are sums over the samples
                places = select(part, room, args.factor)
                selection.append((places.int(), part[places]))
                part[places] = 0
            worker.push_sparse(selection, samples=args.batch, loss=loss.item())
            worker.wait()
            worker.pull()
        with torch.no_grad():
            worker.report(accuracy=float((model(images[test]).argmax(1) == labels[test]).float().mean()))


if __name__ == "__main__":
    main()
