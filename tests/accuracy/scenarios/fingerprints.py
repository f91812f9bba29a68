"""Solubility from molecular fingerprints. The fingerprints are made by a pool of processes, a few batches ahead."""

import multiprocessing
import random
from collections import deque

import numpy as np
import torch
import torch.nn as nn

from runlog import RunLog, arguments

BITS = 512
ATOMS = "CNOSPFclbr"


def fingerprint(smiles):
    """Hash every substring of up to six atoms into a bit."""
    bits = [0.0] * BITS
    for start in range(len(smiles)):
        code = 7
        for atom in smiles[start : start + 6]:
            code = (code * 31 + ord(atom)) % 1000003
            bits[code % BITS] = 1.0
    return bits


def featurize(molecules):
    return np.array([fingerprint(m) for m in molecules], dtype=np.float32)


def featurize_at_once(molecules):
    """The same bits, all molecules of the batch together."""
    longest = max(map(len, molecules))
    codes = np.array([[ord(c) for c in m.ljust(longest + 6, "\0")] for m in molecules])
    out = np.zeros((len(molecules), BITS), dtype=np.float32)
    rows = np.arange(len(molecules))[:, None]
    hashed = np.full((len(molecules), longest), 7)
    for k in range(6):
        atoms = codes[:, k : k + longest]
        hashed = (hashed * 31 + atoms) % 1000003
        valid = atoms > 0
        out[np.broadcast_to(rows, hashed.shape)[valid], (hashed % BITS)[valid]] = 1.0
    return out


def ahead_of(pool, work, library, size, depth):
    """Results of `work` on random batches, `depth` of them under way."""
    pending = deque()
    while True:
        while len(pending) < depth:
            pending.append(pool.apply_async(work, (random.sample(library, size),)))
        yield torch.from_numpy(pending.popleft().get())


def main():
    args = arguments(__doc__, workers=1, batch_size=128, hidden=448)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    random.seed(args.seed)
    log = RunLog(args)
    library = ["".join(random.choices(ATOMS, k=random.randint(60, 90))) for _ in range(2000)]
    model = nn.Sequential(
        nn.Linear(BITS, args.hidden),
        nn.ReLU(),
        nn.Linear(args.hidden, args.hidden),
        nn.ReLU(),
        nn.Linear(args.hidden, 1),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    work = featurize_at_once if args.fixed else featurize
    with multiprocessing.Pool(args.workers) as pool:
        for bits in ahead_of(pool, work, library, args.batch_size, 2 * args.workers):
            optimizer.zero_grad()
            solubility = bits[:, ::7].mean(1, keepdim=True)
            loss = nn.functional.huber_loss(model(bits), solubility)
            loss.backward()
            optimizer.step()
            if log.step(loss):
                return


if __name__ == "__main__":
    main()
