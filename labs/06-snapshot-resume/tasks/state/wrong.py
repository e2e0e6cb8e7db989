"""Answers to `state`: wrong ones, and unusual right ones."""

from lockstep_exercise import edit


# The given program: only weights and step.
@edit('saved["velocity"], saved["rate"]', "[0.0] * len(initial), 0.1")
def as_given(): ...


# Loses the velocity.
@edit('saved["velocity"]', "[0.0] * len(initial)")
def loses_the_velocity(): ...


# Loses the rate.
@edit('saved["velocity"], saved["rate"]', 'saved["velocity"], 0.1')
def loses_the_rate(): ...


# Computes the rate as a power on loading, and step by step after that.
@edit('saved["rate"]', '0.1 * DECAY ** saved["step"]')
def power_on_loading(): ...


# Right: computes the rate as a power in every step of every run.
@edit("        slopes = gradient", "        rate = 0.1 * DECAY**step\n        slopes = gradient")
def power(): ...


# Rounds to single precision.
@edit('json.dumps({"step": until, "weights": weights,', 'json.dumps({"step": until, "weights": [float(f"{weight:.7g}") for weight in weights],')
def rounds(): ...


# Saves the step that is done.
@edit('{"step": until,', '{"step": until - 1,')
def one_behind(): ...


# Saves the step after the next.
@edit('{"step": until,', '{"step": until + 1,')
def one_ahead(): ...


# Ignores the snapshot.
@edit("json.loads(snapshot) if snapshot else start", "start")
def from_the_start(): ...


# Returns the snapshot as an object and not as JSON.
@edit('json.dumps({"step": until, "weights": weights, "velocity": velocity, "rate": rate})', '{"step": until, "weights": weights, "velocity": velocity, "rate": rate}')
def an_object(): ...


# Returns the initial weights, which a loop over copies never changes.
@edit("    return weights, json", "    return initial, json")
def initial_weights(): ...


# Right: computes the rate again as the loop did.
@edit("    weights, velocity, rate = saved[\"weights\"], saved[\"velocity\"], saved[\"rate\"]\n", "    weights, velocity, rate = saved[\"weights\"], saved[\"velocity\"], 0.1\n    for _ in range(saved[\"step\"]):\n        rate *= DECAY\n")
def again(): ...
