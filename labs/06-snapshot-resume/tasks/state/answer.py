"""Task 2: all that the next step reads. Spot the bug.

Gradient descent with momentum and a learning rate that falls a little with each step. A run that was stopped and started again must end with
the same weights, to the last bit, as a run without a stop. Each start is a new process, which knows only the snapshot, and computes only the
steps that are still to do.
"""

import json
from collections.abc import Callable

MOMENTUM = 0.9
DECAY = 0.95


def state(
    gradient: Callable[[int, list[float]], list[float]], initial: list[float], snapshot: str | None, until: int
) -> tuple[list[float], str]:
    """Trains up to step `until`, from the snapshot if there is one, and returns the weights and a snapshot to continue from, as JSON.

    `gradient` is a function of the step, which selects the samples, and of the weights.
    """
    # <answer>
    #~ saved = json.loads(snapshot) if snapshot else {"step": 0, "weights": initial}
    #~ weights, velocity, rate = saved["weights"], [0.0] * len(initial), 0.1
    start = {"step": 0, "weights": initial, "velocity": [0.0] * len(initial), "rate": 0.1}
    saved = json.loads(snapshot) if snapshot else start
    weights, velocity, rate = saved["weights"], saved["velocity"], saved["rate"]
    # </answer>
    for step in range(saved["step"], until):
        slopes = gradient(step, weights)
        velocity = [MOMENTUM * speed + slope for speed, slope in zip(velocity, slopes)]
        weights = [weight - rate * speed for weight, speed in zip(weights, velocity)]
        rate *= DECAY
    # <answer>
    #~ return weights, json.dumps({"step": until, "weights": weights})
    return weights, json.dumps({"step": until, "weights": weights, "velocity": velocity, "rate": rate})
    # </answer>
