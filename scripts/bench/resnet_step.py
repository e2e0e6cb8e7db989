"""Times training steps of ResNet-18 in Python and prints them as lines of JSON: the twin of crates/lockstep/examples/resnet_step.rs.

torchvision's network with the same pictures, initial weights (to the bit), SGD and number of threads. Run by
against_python.py; needs a Python with PyTorch 2.11 and torchvision.
"""

import argparse

import torch
import torchvision
from torch import nn

from ddp_step import Orders, formula, measure

BATCH, SIDE, CLASSES, PICTURES_SALT = 32, 32, 10, 100


def make_network():
    model = torchvision.models.resnet18(weights=None, num_classes=CLASSES).train()
    with torch.no_grad():
        for salt, parameter in enumerate(model.parameters(), 1):
            parameter.copy_(start(parameter.shape, salt))
    return model


def start(shape, salt):
    """Normalization starts near its ones and zeros, everything else within ±√(3/inputs)."""
    if len(shape) == 1:
        return formula(shape, salt, 0.1) + (1.0 if salt % 3 == 2 else 0.0)
    return formula(shape, salt, (3.0 / shape[1:].numel()) ** 0.5)


def make_step(args):
    model = make_network()
    inputs = formula((BATCH, 3, SIDE, SIDE), PICTURES_SALT, 1.0)
    targets = (torch.arange(BATCH) * 7).remainder(CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9, weight_decay=1e-5, fused=True if args.fused else None)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--warmup", type=int, default=3, help="steps before the clock starts")
    parser.add_argument("--steps", type=int, default=20, help="steps to time, without a driver")
    parser.add_argument("--driver", type=int, help="loopback port of a driver that asks for steps")
    parser.add_argument("--fused", action="store_true", help="SGD's fused kernel instead of Python's default")
    args = parser.parse_args()
    torch.set_num_threads(1)
    step = make_step(args)
    measure(step, args.warmup)
    orders = Orders(args)
    while (steps := orders.next()) > 0:
        orders.answer(measure(step, steps))


if __name__ == "__main__":
    main()
