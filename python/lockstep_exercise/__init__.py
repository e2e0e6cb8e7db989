"""Runs a learner's answers in Python for the graders of the course, which do not know the language: they ask by file.

`python -m lockstep_exercise LAB FOLDER` imports PyTorch, and then waits for the grader's requests (`copies`). For each rank it makes a copy
of itself, which reads the call, joins a process group, calls the learner's function in `FOLDER/TASK.py` and leaves the answer (`rank`).
Calls of `torch.distributed` are recorded on the way (`record`). `lab_02` to `lab_06` say how inputs reach the functions, and have what these
work with; you may read them, and do not change them.
"""

from .source import edit

__all__ = ["edit"]
