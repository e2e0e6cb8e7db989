"""Task 6: make it distributed.

Lab 01's program trains on one device. Started once for each rank, it must train one model on all ranks together. Its losses and weights must
be those of one process with the same `batch_size`, which counts the samples of all ranks. Each epoch visits each sample once, in a different
order. One rank reports an epoch's mean loss over all samples, and one rank saves. At the end all ranks read the checkpoint.
"""

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.data.distributed import DistributedSampler

from lockstep_exercise.lab_02 import TrainingRun


def distributed(job: TrainingRun) -> None:
    """Trains on this rank. A launcher has set the variables that `dist.init_process_group` reads; it has not been called yet."""
    settings = job.settings
    torch.manual_seed(settings.seed)
    data, model = job.data(), job.net()
    # This is the program for one device. What must change?
    sampler = RandomSampler(data, generator=torch.Generator().manual_seed(settings.seed))
    loader = DataLoader(data, settings.batch_size, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr)
    for epoch in range(settings.epochs):
        total, samples = 0.0, 0
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(targets)
            samples += len(targets)
        job.report(epoch, total / samples)
    job.save(model)
    job.load(model)
