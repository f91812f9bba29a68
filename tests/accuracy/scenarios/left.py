"""What is still slow about mended scripts, and how to take it away: what a warning on a mended run may say.

The gains were measured with `remains.py` on 2026-11-22, most of them twice (two cores that others used as well); each
is the geometric mean. Those of `tutorial_latency` and `slow-loader` are of 2026-11-23, four times on a quiet machine;
that of `hf_titles` of the same day, once, of four turns; that of `climate_grid` of 2026-11-26, twice, of six.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Left:
    """One thing that is still slow about a mended script.

    A warning of `verdict` ("id" or "id/subtype") is true of the mended script: with `edits` (text of the script and
    what replaces it), which take away what it names, the script does `gain` times as much work a second. `batch` is
    how many steps of the script one step of the edited one stands for.
    """

    verdict: str
    gain: float
    edits: tuple[tuple[str, str], ...]
    batch: int = 1

    def edited(self, text):
        """The text of the script with the edits."""
        for old, new in self.edits:
            if text.count(old) != 1:
                raise ValueError(f"not exactly once in the script: {old!r}")
            text = text.replace(old, new)
        return text


# 64 batches again and again: eight workers keep up on average, not at every step, and take cores from the step.
_AHEAD = "    loader = [batch for _, batch in zip(range(64), loader)]\n    model ="
TUTORIAL_LATENCY = Left("input-bound", 1.22, (("    model = Head", f"{_AHEAD} Head"),))
SLOW_LOADER = Left("input-bound", 1.18, (("    model = Net", f"{_AHEAD} Net"),))
# The batches of the first epoch again and again, instead of a queue that is empty whenever an epoch begins.
RESPAWN = Left(
    "input-bound",
    1.40,
    (
        ("def main():", "BATCHES = []\n\n\ndef main():"),
        ("for support, label in loader:", "for support, label in BATCHES or loader:"),
        ("    epoch = 0", "    BATCHES.extend(loader)\n    epoch = 0"),
    ),
)
# The first batch again and again, without the sums of its basket or query.
BASKETS = Left("input-bound", 1.18, (("spent = draw(", "spent = spent if step else draw("),))
SENSOR_DB = Left(
    "input-bound",
    1.44,
    (
        ("        stop = False\n", "        stop = False\n        x = windows.batch(args.batch_size)\n"),
        ("            x = windows.batch(args.batch_size)\n", ""),
    ),
)
# The first batch of the pool again and again: what its handing over takes is a wait for data, or for another process.
_ONE_BATCH = (
    (
        "        yield torch.from_numpy(pending.popleft().get())",
        "        made = torch.from_numpy(pending.popleft().get())\n        while True:\n            yield made",
    ),
    ("            solubility = bits[:, ::7].mean(1, keepdim=True)\n", ""),
    ("huber_loss(model(bits), solubility)", "huber_loss(model(bits), bits[:, :1])"),
)
FINGERPRINTS = Left("input-bound", 1.34, _ONE_BATCH)
FINGERPRINTS_POOL = Left("host-bound", 1.34, _ONE_BATCH)
CROP_ROWS = Left(
    "host-bound",
    1.27,
    (
        (
            "    while True:\n",
            "    made = torch.randn(args.batch_size, 3, 80, 80), torch.rand(args.batch_size, args.plants, 4)\n"
            "    while True:\n",
        ),
        (
            "net(torch.randn(args.batch_size, 3, 80, 80), torch.rand(args.batch_size, args.plants, 4))",
            "net(*made)",
        ),
    ),
)
# A loop written out in place of the Trainer: what it does around the operations of a step takes the rest.
HF_TITLES = Left(
    "python-overhead",
    1.17,
    (
        (
            "def main():\n",
            "def plainly(model, arguments, train_dataset, data_collator, callbacks):\n"
            "    loader = torch.utils.data.DataLoader(\n"
            "        train_dataset, arguments.per_device_train_batch_size, shuffle=True, collate_fn=data_collator\n"
            "    )\n"
            "    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=True)\n"
            "    stop = False\n"
            "    while not stop:\n"
            "        for batch in loader:\n"
            "            model(**batch).loss.backward()\n"
            "            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
            "            optimizer.step()\n"
            "            optimizer.zero_grad()\n"
            "            stop = callbacks[0].log.step(torch.tensor(0.0))\n"
            "            if stop:\n"
            "                break\n\n\n"
            "def main():\n",
        ),
        ("        Trainer(\n", "        plainly(\n"),
        ("        ).train()\n", "        )\n"),
    ),
)
# One operation for all parameters.
FEATURE_SERVICE = Left("optimizer-bound", 1.8, (("lr=1e-4)", "lr=1e-4, fused=True)"),))
OPTIMIZER_HEAVY = Left("optimizer-bound", 1.78, (("lr=1e-3, foreach=True", "lr=1e-3, fused=True"),))
# One tensor instead of 1,000 or 400: fewer operations in the backward pass and the update, too.
OPTIMIZER_MANY = Left(
    "python-overhead",
    12.0,
    (
        (
            "nn.ParameterList([nn.Parameter(torch.randn(1, dim) * 0.1) for _ in range(items)])",
            "nn.Parameter(torch.randn(items, dim) * 0.1)",
        ),
        ("self.tower(torch.cat(list(self.vectors)))", "self.tower(self.vectors)"),
    ),
)
ITEM_TOWERS = Left(
    "python-overhead",
    2.8,
    (
        (
            "nn.ParameterList(nn.Parameter(torch.randn(dim)) for _ in range(shops))",
            "nn.Parameter(torch.randn(shops, dim))",
        ),
        ("self.head(torch.stack(list(self.vectors)))", "self.head(self.vectors)"),
    ),
)
# While its table is still written at every step.
ITEM_TOWERS_WRITING = replace(ITEM_TOWERS, gain=1.26)
# The mean of what the net puts out instead of a loss of three operations, each with a backward pass of its own.
CLIMATE_GRID = Left("host-bound", 1.19, (("loss = (prediction - later).abs().mean()", "loss = prediction.mean()"),))
# The first input again and again.
REVIEWS_API = Left(
    "preprocessing-bound",
    2.06,
    (
        ("    for reviews in incoming", "    ids = None\n    for reviews in incoming"),
        ("ids = torch.tensor([tokenizer", "ids = ids if ids is not None else torch.tensor([tokenizer"),
    ),
)
# In the first seconds, before the model's calls are seen.
REVIEWS_HOST = replace(REVIEWS_API, verdict="host-bound")
COMPLAINTS_DESK = Left(
    "preprocessing-bound",
    1.67,
    (
        ("    async def answer(self):\n", "    async def answer(self):\n        ids = None\n"),
        ("ids = torch.tensor([self.cutter", "ids = ids if ids is not None else torch.tensor([self.cutter"),
    ),
)
# The same line, seen as what holds the event loop up.
COMPLAINTS_LOOP = replace(COMPLAINTS_DESK, verdict="host-bound")
# Several requests in one forward pass.
COMPLAINTS_ALONE = Left(
    "underbatched",
    1.93,
    (
        (
            "            text = await self.inbox.get()\n            ids = torch.tensor([self.cutter(text)])",
            "            texts = [await self.inbox.get() for _ in range(16)]\n"
            "            ids = torch.tensor([(self.cutter(text) + [0] * 256)[:256] for text in texts])",
        ),
    ),
    batch=16,
)
TICKET_ROUTER = Left("underbatched", 2.89, (("batch_size=4,", "batch_size=32,"),), batch=8)
# One operation for all parameters.
FINGERPRINTS_UPDATE = Left("optimizer-bound", 1.23, (("lr=1e-3)", "lr=1e-3, fused=True)"),))
LIT_REGRESSOR_UPDATE = replace(FINGERPRINTS_UPDATE, gain=1.25)
SOIL_TUNER_UPDATE = Left(
    "optimizer-bound", 1.13, (("Adam(self.net.parameters())", "Adam(self.net.parameters(), fused=True)"),)
)
BASKETS_UPDATE = Left(
    "optimizer-bound", 1.30, (("decoder.parameters()], lr=1e-3)", "decoder.parameters()], lr=1e-3, fused=True)"),)
)
# The first batch again and again.
CHECKPOINTS = Left(
    "input-bound",
    1.10,
    (
        (
            "    while True:\n        inputs = torch.randn(size, width)\n"
            "        yield inputs, torch.tanh(inputs @ weights)",
            "    inputs = torch.randn(size, width)\n    made = inputs, torch.tanh(inputs @ weights)\n"
            "    while True:\n        yield made",
        ),
    ),
)
