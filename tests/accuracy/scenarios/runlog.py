"""What all these training scripts share: their options, and a line about the speed every two seconds."""

import argparse
import sys
import time


def arguments(description, **defaults):
    """The options of a training script.

    `fixed` is True where everything is mended. A script with two faults asks for `first` and `second` instead.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps (default: never)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--losses", metavar="FILE", help="write the exact bytes of every loss")
    which = ("first", "second", "both")
    parser.add_argument(
        "--fixed", nargs="?", choices=which, const="both", help="run with the fault mended, or one of two"
    )
    for name, default in defaults.items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(default), default=default)
    args = parser.parse_args()
    args.first, args.second = args.fixed in ("first", "both"), args.fixed in ("second", "both")
    args.fixed = args.fixed == "both"
    return args


class RunLog:
    """Counts steps; `step()` is True when the run is over.

    Denormal numbers count as zero. The made-up tasks soon leave many weights without gradients, and updates that
    compute with their fading averages would be a second fault of a dozen scripts: `rare_words` has it alone.
    """

    def __init__(self, args):
        if "torch" in sys.modules:
            sys.modules["torch"].set_flush_denormal(True)
        self.steps = args.steps
        self.losses = open(args.losses, "w", buffering=1) if args.losses else None
        self.count = 0
        self.begin = self.shown_at = None
        self.shown = 0

    def step(self, loss):
        self.count += 1
        now = time.perf_counter()
        if self.losses:
            self.losses.write(loss.detach().numpy().tobytes().hex() + "\n")
        if self.begin is None:
            self.begin = self.shown_at = now
            print(f"step 1: loss {loss.item():.4f}", flush=True)
        elif now - self.shown_at >= 2.0:
            rate = (self.count - self.shown) / (now - self.shown_at)
            print(f"step {self.count}: {rate:.2f} steps/s, loss {loss.item():.4f}", flush=True)
            self.shown, self.shown_at = self.count, now
        if self.count == self.steps:
            rate = (self.count - 1) / max(now - self.begin, 1e-9)
            print(f"done: {self.count} steps, {rate:.2f} steps/s", flush=True)
            return True
        return False
