

"""The same as crates/bench-ranks/src/steps.rs in Python: the same networks with the same weights to the bit, the same samples, and the same steps."""

import functools
import statistics
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LAYERS, SIDE, CLASSES, WIDTH = (784, 1024, 1024, 10), 32, 10, 16
THREES_BEFORE = 2


def formula(shape, salt, scale):
    """Numbers in [-1, 1] in steps of 1/1000, times `scale`; the same bits in Rust."""
    numbers = torch.arange(torch.Size(shape).numel())
    thousandths = (numbers * 7919 + salt * 104729).remainder(2001) - 1000
    return (thousandths.double() / 1000 * scale).float().reshape(shape)


def mlp(rank, batch):
    layers = []
    for layer, (inputs, outputs) in enumerate(zip(LAYERS, LAYERS[1:])):
        linear = nn.Linear(inputs, outputs)
        with torch.no_grad():
            linear.weight.copy_(formula((outputs, inputs), 2 * layer + 1, inputs**-0.5))
            linear.bias.copy_(formula((outputs,), 2 * layer + 2, inputs**-0.5))
        layers += [nn.ReLU(), linear] if layers else [linear]
    numbers = torch.arange(batch) + rank
    targets = (numbers * 7 + numbers.div(3, rounding_mode="floor")).remainder(LAYERS[-1])
    return nn.Sequential(*layers), formula((batch, LAYERS[0]), 9 + rank, 1.0), targets


def convolution(inputs, outputs, size, stride):
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)


class Block(nn.Module):
    """torchvision's BasicBlock."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.bn1 = convolution(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2, self.bn2 = convolution(outputs, outputs, 3, 1), nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, inputs):
        found = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(inputs)))))
        found += inputs if self.downsample is None else self.downsample(inputs)
        return self.relu(found)


def resnet(rank, batch):
    """torchvision's ResNet-18 with another width."""
    stem = [convolution(3, WIDTH, 7, 2), nn.BatchNorm2d(WIDTH), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    blocks, inputs = [], WIDTH
    for stage in range(4):
        outputs = WIDTH << stage
        blocks += [Block(inputs, outputs, 2 if stage else 1), Block(outputs, outputs, 1)]
        inputs = outputs
    model = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES)).train()
    with torch.no_grad():
        for salt, parameter in enumerate(model.parameters(), 1):
            parameter.copy_(start(parameter.shape, salt))
    return model, formula((batch, 3, SIDE, SIDE), 100 + rank, 1.0), (torch.arange(batch) * 7).remainder(CLASSES)


def start(shape, salt):
    """Normalization starts near its ones and zeros, everything else within ±√(3/inputs)."""
    if len(shape) == 1:
        return formula(shape, salt, 0.1) + (1.0 if salt % 3 == 2 else 0.0)
    return formula(shape, salt, (3.0 / shape[1:].numel()) ** 0.5)


class Trainer:
    def __init__(self, model, batch, rank):
        network, inputs, targets = {"mlp": mlp, "resnet": resnet}[model](rank, batch)
        self.inputs, self.targets = inputs.to(DEVICE), targets.to(DEVICE)  # noqa: F821, the file before this one
        self.ddp = DistributedDataParallel(network.to(DEVICE))  # noqa: F821
        fused = True if "--fused" in sys.argv else None
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.0, momentum=0.9, weight_decay=1e-5, fused=fused)
        for _ in range(THREES_BEFORE):
            self.three()

    def step(self):
        """The times at which the parts begin, and the end; the loss."""
        dist.barrier()
        begun = now()
        self.optimizer.zero_grad(set_to_none=True)
        forward = now()
        loss = nn.functional.cross_entropy(self.ddp(self.inputs), self.targets)
        backward = now()
        loss.backward()
        optimizer = now()
        self.optimizer.step()
        return (begun, forward, backward, optimizer, now()), loss

    def three(self):
        """Two steps with communication and one without: the parts of the second, and the backward pass of the third."""
        self.step()
        (begun, forward, backward, optimizer, ended), _ = self.step()
        with self.ddp.no_sync():
            (_, _, alone, no_more, _), _ = self.step()
        updates = forward - begun + ended - optimizer
        return [ended - begun, backward - forward, optimizer - backward, updates, no_more - alone]

    def gradient(self):
        squares = [parameter.grad.square().sum(dtype=torch.float64).item() for parameter in self.ddp.parameters()]
        return sum(squares) ** 0.5


def at_once(buckets):
    for work in [dist.all_reduce(bucket, async_op=True) for bucket in buckets]:
        work.wait()


def in_turn(buckets):
    for bucket in buckets:
        dist.all_reduce(bucket)


def all_reduces(how, sizes, times):
    """Seconds in which buckets of these sizes in bytes are reduced, with nothing else to do."""
    buckets, found = [torch.zeros(size // 4, device=DEVICE) for size in sizes], []
    for _ in range(1 + times):
        dist.barrier()
        begun = now()
        how(buckets)
        found.append(now() - begun)
    slowest = torch.tensor(found[1:], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return statistics.median(slowest.tolist())


@functools.cache
def trainer(model, batch, rank):
    return Trainer(model, batch, rank)


def peak_memory():
    """The most bytes of tensors on a GPU, of the rank with the most."""
    if not ON_GPU:  # noqa: F821
        return {}
    most = torch.tensor(torch.cuda.max_memory_allocated(DEVICE))  # noqa: F821
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return {"peak": int(most)}


def step(order, rank, world):
    mine = trainer(order["model"], order["batch"], rank)
    if ON_GPU:  # noqa: F821
        torch.cuda.reset_peak_memory_stats(DEVICE)  # noqa: F821
    rows = torch.tensor([mine.three() for _ in range(order["steps"])], dtype=torch.float64)
    dist.all_reduce(rows)
    names = ["step", "forward", "backward", "optimizer", "backward_alone"]
    medians = [statistics.median(column) for column in (rows / world).T.tolist()]
    _, loss = mine.step()
    gradient = mine.gradient()
    peak = peak_memory()
    layout = mine.ddp._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    sizes = [int(size) for size in layout.split(", ")]
    alone, one = (all_reduces(how, sizes, order["steps"]) for how in (at_once, in_turn))
    exchange = {"all_reduces": alone, "one_all_reduce": one / len(sizes), "bytes": sum(sizes), "buckets": len(sizes)}
    return dict(zip(names, medians)) | exchange | {"loss": loss.item(), "gradient": gradient} | peak
