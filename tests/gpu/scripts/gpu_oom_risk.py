"""A run that has nearly filled its device with things to remember. Fixed: it remembers them on the host."""

import torch
from runlog import RunLog, arguments
from torch import nn

from gpu_run import layers


def main():
    args = arguments(__doc__, device="cuda", width=1024, batch_size=1024, full=0.95, host=1 << 20)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    log = RunLog(args)
    model = layers(args.width, 4).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(args.batch_size, args.width, device=args.device)
    y = torch.randint(10, (args.batch_size,), device=args.device)
    memory = torch.zeros(args.host)
    while True:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if log.count == 5 and args.device == "cuda" and not args.fixed:
            free, total = torch.cuda.mem_get_info()
            memory = torch.zeros(max(1, int(free - (1 - args.full) * total)), dtype=torch.uint8, device=args.device)
        if log.step(loss + 0 * memory[0]):
            return


if __name__ == "__main__":
    main()
