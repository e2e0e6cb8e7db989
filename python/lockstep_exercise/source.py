"""The source of an answer: loads it, finds its lines in a traceback, and sees what a compiler would warn of.

In a learner's folder an answer is `TASK.py`. In the course's, `TASK/answer.py` has the course's own, and `TASK/wrong.py` the others: each is a
function, or an edit of the course's own.
"""

import ast
import os
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

# The markers in the course's answers, which the learner's file has not (`package.rs` of `crates/grading`).
MARKERS = ("# <answer>", "# </answer>", "#~")
# Functions of `torch.distributed` that return None, and those that return a request.
WITHOUT_VALUE = {
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "gather", "scatter", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier", "send",
}  # fmt: skip
# Those that change their first argument.
IN_PLACE = {"all_reduce", "broadcast", "reduce", "recv", "irecv"}
REQUESTS = {"isend", "irecv"}
# Methods of tensors that make a new tensor, and have a twin with `_` that changes the tensor.
NEW_TENSORS = {"add", "sub", "mul", "div", "clamp", "neg", "sqrt", "pow", "true_divide"}
# Those that tensors ran, by file and line. Other types have methods of these names: `add` changes a set.
RAN: set[tuple[str, int, str]] = set()


@dataclass(frozen=True)
class Source:
    """An answer, and where its source is."""

    function: Callable[..., Any]
    path: Path
    tree: ast.FunctionDef

    def place(self, traceback: TracebackType | None) -> tuple[str | None, bool]:
        """The answer's innermost line in a traceback, and whether the exception was raised there and not in what it called."""
        place, is_last = None, False
        while traceback is not None:
            is_last = traceback.tb_frame.f_code.co_filename == str(self.path)
            if is_last:
                place = f"{shown(self.path)}:{traceback.tb_lineno}"
            traceback = traceback.tb_next
        return place, is_last


def shown(path: Path) -> str:
    """A path as a learner knows it: `02_spawn_ddp/average.py`."""
    return "/".join(path.parts[-2:])


def load(folder: Path, answer: str) -> Source:
    """Loads the answer `TASK`, or `TASK/NAME` of the course."""
    task, _, name = answer.partition("/")
    if name:
        return _load(folder / task / "wrong.py", name)
    learners = folder / f"{task}.py"
    return _load(learners if learners.is_file() else folder / task / "answer.py", task)


def _load(path: Path, name: str) -> Source:
    text = path.read_text()
    module = _module(text, path)
    function = getattr(module, name, None)
    if isinstance(function, Edited):
        return function.source()
    if not callable(function):
        raise NameError(f"{path.name} has no function {name}", name=name)
    return Source(function, path, _function(text, name))


def _module(text: str, path: Path) -> types.ModuleType:
    # Each module has its own name, so that dataclasses and pickles find it.
    module = types.ModuleType(f"{path.parent.name}_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    module.__dict__["hash"] = process_hash
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    exec(compile(text, str(path), "exec"), module.__dict__)  # the point of this program
    return module


# Lines of an answer that take the hash of a text.
_HASHED: set[int] = set()


def process_hash(value: object) -> int:
    """`hash` as processes have it that were started one by one: each gives texts other numbers (PYTHONHASHSEED), but copies of one share them."""
    if not _has_text(value):
        return hash(value)
    _HASHED.add(sys._getframe(1).f_lineno)
    return hash((os.getpid(), value))


def _has_text(value: object) -> bool:
    if isinstance(value, (tuple, frozenset)):
        return any(map(_has_text, value))
    return isinstance(value, (str, bytes))


def _function(text: str, name: str) -> ast.FunctionDef:
    found = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == name]
    return found[-1] if found else ast.FunctionDef(name, ast.arguments([], [], None, [], [], None, []), [], [])


class Edited:
    """The course's answer with some code replaced."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.text = path, text

    def source(self) -> Source:
        """The edited answer. Its lines are those of the file as long as the edits keep their number."""
        task = self.path.parent.name
        return Source(getattr(_module(self.text, self.path), task), self.path, _function(self.text, task))


def edit(find: str, replace: str) -> Callable[[Any], Edited]:
    """Writes a wrong or unusual answer as an edit of the course's: above `def NAME(): ...` in a task's `wrong.py`, replaces code in
    `answer.py`, which must have it exactly once. Several edits are several decorators, and the lowest comes first."""

    def edited(stub: Any) -> Edited:
        if isinstance(stub, Edited):
            path, text = stub.path, stub.text
        else:
            path = Path(stub.__code__.co_filename).with_name("answer.py")
            # A marker leaves an empty line, so that the others keep their numbers.
            lines = path.read_text().splitlines()
            text = "\n".join("" if line.strip().startswith(MARKERS) else line for line in lines) + "\n"
        count = text.count(find)
        if count != 1:
            raise ValueError(f"{find!r} occurs {count} times in {path}")
        return Edited(path, text.replace(find, replace))

    return edited


def notes(source: Source) -> list[str]:
    """What a compiler would warn of, each a sentence with its line: values that nothing reads, and values that are None."""
    found: list[tuple[int, str]] = []
    body = ast.Module(source.tree.body, [])
    for node in ast.walk(body):
        if isinstance(node, ast.Expr):
            found += _dropped(node, source.path)
        name = _distributed(node)
        if name in IN_PLACE and isinstance(node, ast.Call) and node.args and _is_new(node.args[0]):
            new = ast.unparse(node.args[0])
            found.append((node.lineno, f"passes `{new}`, a new tensor, to `{name}`: its result is in that tensor, which nobody else has"))
        if name in WITHOUT_VALUE and not _is_statement(body, node) and not _is_asynchronous(node):
            found.append((node.lineno, f"uses the value of `{name}`, which is None: it changes the tensor that it is given"))
    found += _dead_stores(source.tree) + _replaced_views(body)
    found += [
        (line, "takes `hash` of a text, which is another number in each process (PYTHONHASHSEED): use the text itself, as in `random.Random(text)`")
        for line in _HASHED
    ]
    return [f"line {line} {what}" for line, what in sorted(set(found))]


def _dropped(node: ast.Expr, path: Path) -> list[tuple[int, str]]:
    """A statement whose value is dropped."""
    value, name = node.value, _distributed(node.value)
    if name in REQUESTS or name in WITHOUT_VALUE and _is_asynchronous(value):
        return [(node.lineno, f"drops the request of `{name}`: nothing waits for its end, and its tensor has its value only then")]
    method = value.func.attr if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) else ""
    # An operator within its arguments runs such a method, too.
    operators = isinstance(value, ast.Call) and any(isinstance(part, ast.BinOp) for one in value.args for part in ast.walk(one))
    if not operators and any((str(path), line, method) in RAN for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)):
        return [(node.lineno, f"drops its result: `{method}` makes a new tensor, and `{method}_` changes the tensor")]
    if isinstance(value, (ast.BinOp, ast.Compare)):
        return [(node.lineno, f"computes `{ast.unparse(value)}` and drops the result")]
    return []


def _distributed(node: ast.AST) -> str:
    """The function of `torch.distributed` that is called here, or nothing."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        of = ast.unparse(node.func.value)
        return node.func.attr if of in ("dist", "torch.distributed", "distributed") else ""
    return ""


def _is_new(node: ast.AST) -> bool:
    """Returns true for an expression that makes a tensor."""
    return isinstance(node, ast.BinOp) or isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".clone", "torch.tensor", "torch.stack"))


def _is_asynchronous(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and any(keyword.arg == "async_op" for keyword in node.keywords)


def _is_statement(body: ast.AST, call: ast.AST) -> bool:
    return any(isinstance(node, ast.Expr) and node.value is call for node in ast.walk(body))


def _dead_stores(tree: ast.FunctionDef) -> list[tuple[int, str]]:
    """Names that get a new value made from their old one, and are not read again: the caller, or the list, still has the old one."""
    found = []
    loops = [node for node in ast.walk(tree) if isinstance(node, (ast.For, ast.While))]
    loads = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    loads += [node.target for node in ast.walk(tree) if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)]
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)):
            continue
        name = node.targets[0].id
        reads_itself = any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node.value))
        # What reads it in the next pass of a loop counts, unless the loop gives it a new value first.
        around = [loop for loop in loops if loop.lineno <= node.lineno <= (loop.end_lineno or 0)]
        again = [loop for loop in around if not (isinstance(loop, ast.For) and name in _names(loop.target))]
        end = node.end_lineno or node.lineno
        inner = min(
            ((loop.end_lineno or 0) for loop in around if isinstance(loop, ast.For) and name in _names(loop.target)),
            default=sys.maxsize,
        )
        is_read = any(
            load.id == name and (end < load.lineno <= inner or any(_is_in(load, loop) and inner == sys.maxsize for loop in again))
            for load in loads
        )
        if reads_itself and not is_read and not _distributed(node.value):
            found.append((
                node.lineno,
                f"makes a new value for `{name}` that nothing reads: `{ast.unparse(node)}` leaves the one that the caller has as it was. "
                f"An operation in place (`+=`, `/=`, `copy_`) changes it",
            ))  # fmt: skip
    return found


def _replaced_views(body: ast.AST) -> list[tuple[int, str]]:
    """Elements of a list of views that are replaced by other tensors."""
    assigned = [node for node in ast.walk(body) if isinstance(node, ast.Assign) and len(node.targets) == 1]
    splits = (".tensor_split(", ".split(", ".chunk(", ".unbind(")
    views = {ast.unparse(node.targets[0]) for node in assigned if any(split in ast.unparse(node.value) for split in splits)}
    return [
        (node.lineno, f"puts another tensor into `{name}` in place of the view: `copy_` and `+=` write into the view")
        for node in assigned
        if isinstance(node.targets[0], ast.Subscript) and (name := ast.unparse(node.targets[0].value)) in views
    ]


def _names(target: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def _is_in(node: ast.AST, loop: ast.AST) -> bool:
    return loop.lineno <= node.lineno <= (loop.end_lineno or 0)
