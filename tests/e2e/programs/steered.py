"""Trains in steps of 30 ms and does what single letters on its input say, until that ends.

`h`: say "holds", sleep with the GIL until another letter comes, take it and say "back". `n`: say which modules of aitop
are loaded, and whether the class of the net has a call of its own.
"""

import ctypes
import os
import select
import struct
import sys
import time

import torch

# Not everything of the hook is loaded at once: its parts come one a step.
PAUSE_SECONDS = 0.03
poll = ctypes.PyDLL(None).poll
ask_stdin = ctypes.create_string_buffer(struct.pack("<ihh", 0, select.POLLIN, 0))


def hold() -> None:
    print("holds", flush=True)
    poll(ask_stdin, 1, -1)
    os.read(0, 1)
    print("back", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    print("ready", flush=True)
    while True:
        net(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        time.sleep(PAUSE_SECONDS)
        while select.select([0], [], [], 0)[0]:
            letter = os.read(0, 1)
            if not letter:
                return
            if letter == b"h":
                hold()
            else:
                names = [name for name in sys.modules if "aitop" in name]
                print(names, "__call__" in vars(type(net)), flush=True)


if __name__ == "__main__":
    main()
