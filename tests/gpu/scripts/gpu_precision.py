"""Large products of matrices in plain float32. Fixed: TF32 where the device has it, else half precision."""

import contextlib

import torch
from runlog import RunLog, arguments
from torch import nn

from gpu_run import layers


def main():
    args = arguments(__doc__, device="cuda", width=4096, batch_size=4096)
    torch.manual_seed(args.seed)
    log = RunLog(args)
    narrow = contextlib.nullcontext()
    if args.fixed:
        torch.set_float32_matmul_precision("high")
        if args.device == "cuda" and torch.cuda.get_device_capability() < (8, 0):
            narrow = torch.autocast("cuda", torch.float16)
    model = layers(args.width, 6).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(args.batch_size, args.width, device=args.device)
    y = torch.randint(10, (args.batch_size,), device=args.device)
    while True:
        optimizer.zero_grad()
        with narrow:
            loss = nn.functional.cross_entropy(model(x).float(), y)
        loss.backward()
        optimizer.step()
        if log.step(loss):
            return


if __name__ == "__main__":
    main()
