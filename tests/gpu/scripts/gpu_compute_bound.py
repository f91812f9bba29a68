"""Large products of matrices in mixed precision, data on the device: nothing to gain.

With `--profile FILE` it profiles 20 steps by itself once FILE.ask is there, and writes the device's seconds in each
phase of a step to FILE.
"""

import json
import os

import torch
from runlog import RunLog, arguments

from gpu_run import layers, mixed_precision

DEPTH, PROFILED = 8, 20


def train(model, optimizer, x, y, device):
    with torch.profiler.record_function("forward of the step"):
        optimizer.zero_grad()
        with mixed_precision(device):
            loss = nn_loss(model(x), y)
    with torch.profiler.record_function("backward of the step"):
        loss.backward()
    with torch.profiler.record_function("optimizer of the step"):
        optimizer.step()
    return loss


def nn_loss(outputs, y):
    return torch.nn.functional.cross_entropy(outputs.float(), y)


def profile(train_once):
    """Seconds a step that kernels take in each phase, by torch.profiler alone."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as taken:
        for _ in range(PROFILED):
            train_once()
        torch.cuda.synchronize()
    rows = taken.key_averages()
    ranges = {row.key.split()[0]: row.device_time_total / 1e6 / PROFILED for row in rows if "of the step" in row.key}
    # The rows of operations have the times of their kernels, too.
    on_device = [row for row in rows if row.device_type == torch.autograd.DeviceType.CUDA]
    kernels = sum(row.self_device_time_total for row in on_device if "of the step" not in row.key) / 1e6 / PROFILED
    # The kernels of a backward are launched by a thread of torch's own, in no range.
    backward = kernels - ranges["forward"] - ranges["optimizer"]
    return {"forward": ranges["forward"], "backward": backward, "optimizer": ranges["optimizer"]}


def main():
    args = arguments(__doc__, device="cuda", width=4096, batch_size=8192, profile="")
    torch.manual_seed(args.seed)
    log = RunLog(args)
    model = layers(args.width, DEPTH).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(args.batch_size, args.width, device=args.device)
    y = torch.randint(10, (args.batch_size,), device=args.device)
    while True:
        loss = train(model, optimizer, x, y, args.device)
        if args.profile and os.path.exists(args.profile + ".ask"):
            os.unlink(args.profile + ".ask")
            figures = profile(lambda: train(model, optimizer, x, y, args.device))
            with open(args.profile + ".new", "w") as file:
                json.dump(figures, file)
            os.rename(args.profile + ".new", args.profile)
        if log.step(loss):
            return


if __name__ == "__main__":
    main()
