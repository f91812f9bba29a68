"""Training a classifier, step by step.

Code for processing data samples can get messy; a Dataset keeps it apart from the training code. Here the images are
kept as text ("P2" grey maps), so they are decoded when they are asked for.
"""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from runlog import RunLog, arguments


def write_pgm(pixels):
    """A grey map as text: header, then one number a pixel."""
    height, width = pixels.shape
    rows = "\n".join(" ".join(str(value) for value in row) for row in pixels)
    return f"P2\n{width} {height}\n255\n{rows}\n"


class FashionLikeDataset(Dataset):
    def __init__(self, count, transform=None, fixed=False):
        rng = np.random.default_rng(7)
        self.files = [write_pgm(rng.integers(0, 256, (28, 28))) for _ in range(200)]
        self.count = count
        self.transform = transform
        self.fixed = fixed

    def __len__(self):
        return self.count

    def __getitem__(self, idx):
        text = self.files[idx % len(self.files)]
        image = self.decode_fast(text) if self.fixed else self.decode(text)
        if self.transform:
            image = self.transform(image)
        return image, idx % 10

    def decode(self, text):
        tokens = text.split()
        width, height = int(tokens[1]), int(tokens[2])
        image = torch.zeros(1, height, width)
        for y in range(height):
            for x in range(width):
                image[0, y, x] = int(tokens[4 + y * width + x]) / 255.0
        return image

    def decode_fast(self, text):
        tokens = text.split()
        width, height = int(tokens[1]), int(tokens[2])
        return torch.tensor(np.array(tokens[4:], dtype=np.float32).reshape(1, height, width) / 255.0)


class NeuralNetwork(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.flatten = nn.Flatten()
        self.linear_relu_stack = nn.Sequential(
            nn.Linear(28 * 28, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 10),
        )

    def forward(self, x):
        x = self.flatten(x)
        logits = self.linear_relu_stack(x)
        return logits


def normalize(image):
    return (image - 0.286) / 0.353


def main():
    args = arguments(__doc__, workers=2, batch_size=32, width=1024)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    training_data = FashionLikeDataset(6400, transform=normalize, fixed=args.fixed)
    train_dataloader = DataLoader(
        training_data, batch_size=args.batch_size, shuffle=True, num_workers=args.workers, persistent_workers=True
    )
    model = NeuralNetwork(args.width)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    while True:
        model.train()
        for X, y in train_dataloader:
            # Compute prediction and loss
            pred = model(X)
            loss = loss_fn(pred, y)

            # Backpropagation
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

            if log.step(loss):
                return


if __name__ == "__main__":
    main()
