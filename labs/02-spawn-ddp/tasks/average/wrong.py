"""Answers to `average`: wrong ones, and unusual right ones."""

import torch
import torch.distributed as dist

from lockstep_exercise import edit


# Reduces nothing.
@edit("dist.all_reduce(gradient)", "pass")
@edit("gradient /= ranks", "pass")
def local(): ...


# Sends rank 0's gradients to all ranks.
@edit("dist.all_reduce(gradient)", "dist.broadcast(gradient, 0)")
@edit("gradient /= ranks", "pass")
def of_rank_0(): ...


# Forgets the division.
@edit("gradient /= ranks", "pass")
def summed(): ...


# Divides out of place: the name gets a new tensor, and the list keeps the sum.
@edit("gradient /= ranks", "gradient = gradient / ranks")
def out_of_place(): ...


# Drops the quotient.
@edit("gradient /= ranks", "gradient.div(ranks)")
def drops_the_quotient(): ...


# Divides the value of `all_reduce`, which is None.
@edit("dist.all_reduce(gradient)", "gradient = dist.all_reduce(gradient)")
def value_of_all_reduce(): ...


# Returns a new list and leaves the gradients as they were.
def returns(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    means = [gradient.clone() for gradient in gradients]
    for mean in means:
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
    return means


# Reduces to rank 0, and stops there.
@edit("dist.all_reduce(gradient)", "dist.reduce(gradient, 0)")
def on_rank_0(): ...


# Divides before the sum and after it.
@edit("dist.all_reduce(gradient)", "gradient /= ranks; dist.all_reduce(gradient)")
def twice(): ...


# Takes the means from one bucket, with a gradient's first dimension for its length.
def bucket_offset(gradients: list[torch.Tensor]) -> None:
    bucket = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(bucket)
    offset = 0
    for gradient in gradients:
        gradient.copy_(bucket[offset:][: gradient.numel()].view_as(gradient) / dist.get_world_size())
        offset += len(gradient)


# Divides by two.
@edit("gradient /= ranks", "gradient /= 2")
def by_two(): ...


# Divides by the number of gradients.
@edit("dist.get_world_size()", "len(gradients)")
def by_gradients(): ...


# Starts the sums, and divides before they have ended: in Rust the request owns the tensor until `wait`.
@edit("dist.all_reduce(gradient)", "work = dist.all_reduce(gradient, async_op=True)")
@edit("gradient /= ranks", "gradient /= ranks\n        work.wait()")
def divides_before_the_wait(): ...


# Right: gathers all gradients on every rank and takes their mean, with more traffic than necessary.
def gathers(gradients: list[torch.Tensor]) -> None:
    for gradient in gradients:
        everything = [torch.zeros_like(gradient) for _ in range(dist.get_world_size())]
        dist.all_gather(everything, gradient)
        gradient.copy_(torch.stack(everything).mean(0))


# Right: starts all sums, and waits for each before it divides.
def overlapped(gradients: list[torch.Tensor]) -> None:
    works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
    for work, gradient in zip(works, gradients, strict=True):
        work.wait()
        gradient.div_(dist.get_world_size())


# Right: puts the means into the list, and returns it.
def new_tensors(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    for place, gradient in enumerate(gradients):
        dist.all_reduce(gradient)
        gradients[place] = gradient / dist.get_world_size()
    return gradients
