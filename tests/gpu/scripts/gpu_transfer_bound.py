"""Float images from ordinary memory for a small network. Fixed: bytes from pinned memory, made floats on the device."""

import torch
from runlog import RunLog, arguments
from torch import nn


def main():
    args = arguments(__doc__, device="cuda", side=256, batch_size=256)
    torch.manual_seed(args.seed)
    log = RunLog(args)
    model = nn.Sequential(nn.Conv2d(3, 16, 7, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 10))
    model = model.to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    pixels = torch.randint(256, (args.batch_size, 3, args.side, args.side), dtype=torch.uint8)
    batch = pixels.pin_memory() if args.fixed and args.device == "cuda" else pixels.float()
    labels = torch.randint(10, (args.batch_size,), device=args.device)
    while True:
        images = batch.to(args.device, non_blocking=args.fixed)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images.float() / 255), labels)
        loss.backward()
        optimizer.step()
        if log.step(loss):
            return


if __name__ == "__main__":
    main()
