

"""The same as crates/bench-ranks/src/pictures.rs in Python: torchvision's DataLoader with persistent workers over the same files."""

import functools
import time

import torch

PHOTOGRAPHS_IN_BATCH, PIXELS = 32, 244
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Loader:
    def __init__(self, folder, workers):
        from torchvision import datasets, transforms

        ends = [transforms.Resize((PIXELS, PIXELS)), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
        plain = datasets.ImageFolder(folder, transforms.Compose(ends))
        first = [plain[index][0] for index in range(min(PHOTOGRAPHS_IN_BATCH, len(plain)))]
        self.mean = torch.stack(first).abs().double().mean().item()
        self.set = datasets.ImageFolder(folder, transforms.Compose([transforms.AutoAugment(), *ends]))
        self.loader = torch.utils.data.DataLoader(
            self.set, batch_size=PHOTOGRAPHS_IN_BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
        )

    def make_pass(self):
        begun = time.perf_counter()
        seen = sum(len(targets) for _, targets in self.loader)
        assert seen == len(self.set)
        return time.perf_counter() - begun


@functools.cache
def loader(folder, workers):
    return Loader(folder, workers)


def pictures(order, rank, world):
    mine = loader(order["folder"], order["workers"])
    return {"seconds": mine.make_pass(), "photographs": len(mine.set), "mean": mine.mean}
