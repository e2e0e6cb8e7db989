"""Wrong answers to `shard`."""

from lockstep_exercise import edit


# Gives each rank a block of neighbours.
@edit("turn * world_size + rank", "rank * each + turn")
def blocks(): ...


# Gives some ranks one sample fewer than others.
def short(samples: int, world_size: int, rank: int) -> list[int]:
    return list(range(rank, samples, world_size))


# Drops what does not divide evenly: `//` rounds down.
@edit("-(-samples // world_size)", "samples // world_size")
def dropped(): ...


# Goes around once at most.
def once_around(samples: int, world_size: int, rank: int) -> list[int]:
    each = -(-samples // world_size)
    places = [turn * world_size + rank for turn in range(each)]
    return [place if place < samples else place - samples for place in places]


# Pads with the rank's own first sample.
def pads_with_own(samples: int, world_size: int, rank: int) -> list[int]:
    each = -(-samples // world_size)
    own = list(range(rank, samples, world_size))
    return own + own[:1] * (each - len(own))


# Pads with a slice, which ends at the end of the list: too short where there are fewer samples than padding.
def pads_with_a_slice(samples: int, world_size: int, rank: int) -> list[int]:
    order = list(range(samples))
    order += order[: -samples % world_size]
    return order[rank::world_size]


# Rounds up where nothing is left to round.
@edit("-(-samples // world_size)", "samples // world_size + 1")
def one_more(): ...


# Rounds a quotient of floats and keeps the float.
@edit("range(each)", "range(round(samples / world_size + 0.5))")
def rounds_floats(): ...


# Yields the numbers, and returns a generator.
def yields(samples: int, world_size: int, rank: int):
    for turn in range(-(-samples // world_size)):
        yield (turn * world_size + rank) % samples


# Prints, and returns nothing.
@edit("return [", "print([")
@edit("for turn in range(each)]", "for turn in range(each)])")
def prints(): ...


# Right: pads the whole order, as DistributedSampler does.
def as_sampler(samples: int, world_size: int, rank: int) -> list[int]:
    order = list(range(samples))
    while len(order) % world_size:
        order.append(order[len(order) - samples])
    return order[rank::world_size]
