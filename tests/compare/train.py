"""The script that every method trains with: a network on images, one rank a process.  compare.py starts it.

make_step() is all that the methods differ in.  The clock runs in training alone: it stops for each evaluation, and starts
again when all ranks are there.  Ranks agree on that by a process group of their own (a few bytes), with every method."""
import argparse
import datetime
import glob
import gzip
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

METHODS = ("alone", "ddp", "ddp-fp16", "ddp-powersgd", "gkps-dense", "gkps-gaussk")


def make_step(model, args):
    """The model to call, and what to call after backward()."""
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    if args.method == "alone":  # no exchange at all: what computing costs on this machine
        return model, optimizer, optimizer.step
    if args.method.startswith("gkps-"):
        import gkps.torch
        optimizer = gkps.torch.Optimizer(model, optimizer, compressor=args.method[5:], density=args.density, log_level="warn")
        return model, optimizer, lambda: optimizer.step(samples=args.batch)
    if args.method == "ddp-powersgd":
        # One bucket: the hook's own exchanges would overtake each other in those of several, each rank in another order,
        # which gloo answers with a broken connection.
        dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 40
        model = DistributedDataParallel(model, bucket_cap_mb=1 << 20)
    else:
        model = DistributedDataParallel(model)
    if args.method == "ddp-fp16":
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif args.method == "ddp-powersgd":
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
        # From the second step on, the earliest that it allows with error feedback.
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=args.powersgd_rank, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return model, optimizer, optimizer.step


def read(folder, kind):
    """The numbers of the one IDX file of the folder with `kind` in its name."""
    path = sorted(glob.glob(os.path.join(folder, f"*{kind}*idx*")))[0]
    with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
        data = file.read()
    shape = [int.from_bytes(data[4 + 4 * i:8 + 4 * i], "big") for i in range(data[3])]
    return torch.frombuffer(bytearray(data[4 + 4 * len(shape):]), dtype=torch.uint8).reshape(shape)


def load(folder):
    images, labels = read(folder, "images").float(), read(folder, "labels").long()
    images = images.reshape(len(images), -1) / images.max()
    cut = len(labels) * 4 // 5  # the first four fifths to train, the rest to test
    return images[:cut], labels[:cut], images[cut:], labels[cut:]


def batches(count, args):
    """Places of this rank's batches: the same ones with every method."""
    size = args.batch * args.world
    epoch = 0
    while True:
        order = torch.randperm(count, generator=torch.Generator().manual_seed(1000003 * args.seed + epoch))
        for at in range(0, count - size + 1, size):
            yield order[at + args.rank * args.batch:at + (args.rank + 1) * args.batch]
        epoch += 1


def link_bytes():
    """What the interface of this box has sent and received."""
    with open("/proc/net/dev", encoding="ascii") as file:
        for line in file:
            name, _, numbers = line.partition(":")
            if name.strip() == "eth0":
                fields = numbers.split()
                return int(fields[8]), int(fields[0])
    return 0, 0


def right_ones(model, images, labels, args):
    """How many of this rank's part of the test images are told right, summed over ranks."""
    with torch.no_grad():
        mine = slice(args.rank, None, args.world)
        count = (model(images[mine]).argmax(1) == labels[mine]).sum().float()
    dist.all_reduce(count)
    return float(count)


def train(args):
    images, labels, test_images, test_labels = load(args.data)
    torch.manual_seed(args.seed)
    widths = [images.shape[1], *args.hidden]
    layers = [layer for a, b in zip(widths, widths[1:]) for layer in (nn.Linear(a, b), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(widths[-1], 10))
    net, optimizer, step = make_step(model, args)
    seconds, sent, received, done, accuracy = 0.0, 0, 0, 0, 0.0
    source = batches(len(labels), args)
    while done < args.steps and accuracy < args.target:
        dist.barrier()
        before, started = link_bytes(), time.monotonic()
        for _ in range(args.every):
            chosen = next(source)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images[chosen]), labels[chosen])
            loss.backward()
            step()
        seconds += time.monotonic() - started
        after = link_bytes()
        sent, received, done = sent + after[0] - before[0], received + after[1] - before[1], done + args.every
        accuracy = right_ones(model, test_images, test_labels, args) / len(test_labels)
        if args.rank == 0:
            print(json.dumps({"step": done, "seconds": seconds, "accuracy": accuracy, "loss": float(loss)}), flush=True)
    print(json.dumps({"rank": args.rank, "steps": done, "seconds": seconds, "sent": sent, "received": received,
                      "accuracy": accuracy, "reached": accuracy >= args.target, "torch": torch.__version__,
                      "parameters": sum(p.numel() for p in model.parameters())}), flush=True)
    # Nobody leaves the process group while another one still needs it.
    dist.barrier()
    if args.method.startswith("gkps-"):
        optimizer.leave()
        optimizer.close()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=METHODS, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--hidden", type=lambda text: [int(width) for width in text.split(",")], required=True)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--target", type=float, required=True)
    parser.add_argument("--density", type=float, required=True)
    parser.add_argument("--powersgd-rank", type=int, required=True)
    args = parser.parse_args()
    args.rank, args.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    train(args)


if __name__ == "__main__":
    main()
