"""A small classifier in PyTorch that may run on any number of ranks, and change it as it runs.

trimtab train run examples/training/digits.yaml --policy srtf
"""

from __future__ import annotations

import argparse

import torch

from trimtab.training.torch import ElasticTraining, device


def data(n: int = 2048, classes: int = 8) -> torch.utils.data.Dataset[tuple[torch.Tensor, ...]]:
    """Noisy points around the centre of each class."""
    random = torch.Generator().manual_seed(1)
    centres = torch.randn(classes, 64, generator=random)
    label = torch.randint(classes, (n,), generator=random)
    return torch.utils.data.TensorDataset(centres[label] + torch.randn(n, 64, generator=random), label)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--width", type=int, default=256)
    options.add_argument("--lr", type=float, default=0.05)
    options.add_argument("--losses", default="", help="file to which rank 0 appends step and loss")
    given = options.parse_args()
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, given.width), torch.nn.ReLU(), torch.nn.Linear(given.width, 8)
    ).to(device())
    optimizer = torch.optim.SGD(model.parameters(), lr=given.lr, momentum=0.9)
    training = ElasticTraining(model, optimizer, data(), samples=20_000, batch=64)
    for points, labels in training:
        training.step(torch.nn.functional.cross_entropy(model(points), labels))
        if given.losses and training.job.rank == 0:
            with open(given.losses, "a") as file:
                file.write(f"{training.job.step} {training.loss}\n")


if __name__ == "__main__":
    main()
