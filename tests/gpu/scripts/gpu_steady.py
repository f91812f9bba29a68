"""Short steps of the same kind, for costs and for losses: `--ends FILE` gets 8 bytes a step, its end in nanoseconds.

`--graph` replays each step as a CUDA graph. `--decode` replays only a model's forward, without a call of it: what a
decoding loop does. `--nccl` trains with DistributedDataParallel in a world of one. Its losses go to
FILE.losses at the end, or when FILE.losses.ask is there: nothing waits for the device at a step.
"""

import os
import struct
import time

import torch
from runlog import RunLog, arguments
from torch import nn

from gpu_run import layers

MOST_LOSSES = 1 << 20


class Steps:
    """One step at a time; its loss stays on the device."""

    def __init__(self, args):
        torch.manual_seed(args.seed)
        self.device = args.device
        self.model = layers(args.width, args.depth).to(self.device)
        self.x = torch.randn(args.batch_size, args.width, device=self.device)
        self.y = torch.randint(10, (args.batch_size,), device=self.device)
        if args.nccl:
            torch.distributed.init_process_group(args.backend, rank=0, world_size=1)
            self.model = nn.parallel.DistributedDataParallel(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.run = self.decode if args.decode else self.train
        if args.graph or args.decode:
            self.run = self.recorded(self.run)

    def train(self):
        self.optimizer.zero_grad(set_to_none=False)
        loss = nn.functional.cross_entropy(self.model(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def decode(self):
        with torch.no_grad():
            return self.model(self.x).mean()

    def recorded(self, step):
        """The step as a replay of its launches."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = step()

        def replay():
            graph.replay()
            return out

        return replay


def main():
    args = arguments(
        __doc__, device="cuda", width=512, depth=8, batch_size=128, ends="", graph=0, decode=0, nccl=0, backend="nccl"
    )
    log = RunLog(args)
    steps = Steps(args)
    losses = torch.zeros(MOST_LOSSES, device=args.device)
    ends = os.open(args.ends, os.O_WRONLY | os.O_CREAT) if args.ends else None
    asked = f"{args.ends}.losses.ask"
    while True:
        loss = steps.run()
        if log.count < MOST_LOSSES:
            losses[log.count].copy_(loss)
        over = log.step(loss)
        if ends is not None:
            os.pwrite(ends, struct.pack("=q", time.monotonic_ns()), 8 * (log.count - 1))
            if over or (log.count % 64 == 0 and os.path.exists(asked)):
                with open(f"{args.ends}.losses.new", "wb") as file:
                    file.write(losses[: log.count].cpu().numpy().tobytes())
                os.rename(f"{args.ends}.losses.new", f"{args.ends}.losses")
                if os.path.exists(asked):
                    os.unlink(asked)
        if over:
            return


if __name__ == "__main__":
    main()
