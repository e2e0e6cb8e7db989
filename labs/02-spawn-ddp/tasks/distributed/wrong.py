"""Answers to `distributed`: wrong ones, and unusual right ones."""

from lockstep_exercise import edit


# Never joins a group, and takes the rank from the environment.
@edit('dist.init_process_group("gloo")', "import os")
@edit("rank, ranks = dist.get_rank(), dist.get_world_size()", 'rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])')
@edit("    model = DistributedDataParallel(model)\n", "")
@edit("DistributedSampler(data,", "DistributedSampler(data, ranks, rank,")
@edit("        dist.all_reduce(sums)\n", "")
@edit("    dist.barrier()\n", "")
def alone(): ...


# Leaves the sampler of one process, so that each rank visits all samples.
@edit("DistributedSampler(data, seed=settings.seed)", "RandomSampler(data)")
@edit("        sampler.set_epoch(epoch)\n", "")
def all_samples(): ...


# Gives all ranks the share of rank 0.
@edit("DistributedSampler(data,", "DistributedSampler(data, ranks, 0,")
def same_share(): ...


# Forgets set_epoch.
@edit("        sampler.set_epoch(epoch)\n", "")
def one_order(): ...


# Leaves the sampler's own seed.
@edit(", seed=settings.seed", "")
def own_seed(): ...


# Uses the batch size as that of each rank.
@edit("settings.batch_size // ranks", "settings.batch_size")
def large(): ...


# Multiplies the learning rate by the number of ranks.
@edit("lr=settings.lr", "lr=settings.lr * ranks")
def scaled_rate(): ...


# Divides the loss by the number of ranks, although DDP averages.
@edit("loss.backward()", "(loss / ranks).backward()")
def divided(): ...


# Does not wrap the network.
@edit("    model = DistributedDataParallel(model)\n", "")
def unwrapped(): ...


# Calls the network inside of DDP, which therefore averages nothing.
@edit("mse_loss(model(inputs), targets)", "mse_loss(model.module(inputs), targets)")
def around_ddp(): ...


# Reports the loss of rank 0's samples.
@edit("        dist.all_reduce(sums)\n", "")
def own_loss(): ...


# Reports the sum of the ranks' mean losses.
@edit("[total, samples]", "[total / samples, 1 / ranks]")
@edit("(sums[0] / sums[1]).item()", "sums[0].item()")
def summed_losses(): ...


# Every rank reports.
@edit("        if rank == 0:\n            job.report", "        if True:\n            job.report")
def all_report(): ...


# Every rank saves.
@edit("    if rank == 0:\n        job.save(model)", "    job.save(model)")
def all_save(): ...


# The others do not wait for the rank that saves.
@edit("    dist.barrier()\n", "")
def without_a_barrier(): ...


# Only rank 0 calls the barrier.
@edit("    dist.barrier()\n", "        dist.barrier()\n")
def barrier_on_rank_0(): ...


# Only rank 0 adds up the losses.
@edit("        dist.all_reduce(sums)\n        if rank == 0:\n", "        if rank == 0:\n            dist.all_reduce(sums)\n")
def sums_on_rank_0(): ...


# Right: averages the gradients by hand.
@edit("    model = DistributedDataParallel(model)\n", "")
@edit(
    "            loss.backward()\n",
    "            loss.backward()\n"
    "            for parameter in model.parameters():\n"
    "                dist.all_reduce(parameter.grad)\n"
    "                parameter.grad /= ranks\n",
)
def by_hand(): ...


# Right: gathers the losses as objects.
@edit("        dist.all_reduce(sums)\n", "        every = [None] * ranks; dist.all_gather_object(every, sums); sums = sum(every)\n")
def gathers(): ...
