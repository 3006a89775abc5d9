"""A write job may run twice (store/engine/commit/writer.py): nothing that it calls counts, logs or spends tokens before the commit.

A function is part of a job if it takes a Transaction or a Batch, has one, or is called by another part of a job in its module. It
may hand a call that counts or logs to `after_commit`, and spend a token if it gives it back in a step of `tx.undo`.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
WRITER: Final = (
    ROOT / "store" / "engine" / "commit" / "writer.py"
)  # runs the jobs, and has the transaction between them, too
REPORTS: Final = frozenset({"counters", "_counters", "log_limiter", "_log_limiter", "_log", "event", "exception"})
SPENDS: Final = frozenset({"spend", "drain", "failed", "proved"})
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def parameters(function: Function) -> list[ast.arg]:
    found = function.args
    return [*found.posonlyargs, *found.args, *found.kwonlyargs]


def takes_transaction(function: Function) -> bool:
    return any(
        one.arg in ("tx", "_tx") or (one.annotation is not None and ast.unparse(one.annotation).strip("'\"") == "Batch")
        for one in parameters(function)
    )


def inside(function: Function) -> Iterator[ast.AST]:
    """What runs when `function` is called: no callback of the transaction, and no job that it only submits."""
    waiting: list[ast.AST] = list(function.body) if not isinstance(function, ast.Lambda) else [function.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Function) and takes_transaction(node):
            continue
        yield node
        if isinstance(node, ast.Call) and (name_of(node.func) == "after_commit" or is_undo(node)):
            continue
        waiting += ast.iter_child_nodes(node)


def is_undo(call: ast.Call) -> bool:
    return ast.unparse(call.func).endswith(".undo.append")


def name_of(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def jobs_in(module: ast.Module) -> list[Function]:
    functions = [node for node in ast.walk(module) if isinstance(node, Function)]
    named = {function.name: function for function in functions if not isinstance(function, ast.Lambda)}
    found = [one for one in functions if takes_transaction(one) or any(name_of(part) == "_tx" for part in inside(one))]
    for job in found:
        for node in inside(job):
            called = named.get(name_of(node.func)) if isinstance(node, ast.Call) and is_own(node.func) else None
            if called is not None and called not in found:
                found.append(called)
    return found


def is_own(called: ast.expr) -> bool:
    """Whether it is a function of the module or a method of the same object."""
    return isinstance(called, ast.Name) or (isinstance(called, ast.Attribute) and name_of(called.value) == "self")


def breaches(source: str) -> list[str]:
    """Each call in a job that happens again when the job is run again, as `line: call`."""
    found: dict[str, None] = {}
    for job in jobs_in(ast.parse(source)):
        nodes = list(inside(job))
        undone = any(isinstance(node, ast.Call) and is_undo(node) for node in nodes)
        for node in nodes:
            if isinstance(node, ast.Call | ast.AugAssign):
                path = {name_of(part) for part in ast.walk(node.func if isinstance(node, ast.Call) else node.target)}
                spends = isinstance(node, ast.Call) and name_of(node.func) in SPENDS
                if path & REPORTS or (spends and not undone):
                    found[f"{node.lineno}: {ast.unparse(node)}"] = None
    return list(found)


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ("self._counters.add('x')", True),
        ("self._counters['x'] += 1", True),
        ("event(_log, 20, 'x')", True),
        ("self._bucket.spend(1.0, now)", True),
        ("self.helper()", True),
        ("tx.after_commit(partial(self._counters.add, 'x'))", False),
        ("tx.after_commit(lambda: self._counters.add('x'))", False),
        ("self._bucket.spend(1.0, now) and tx.undo.append(self._bucket.give_back)", False),
        ("tx.after_commit(self.helper)", False),
    ],
)
def test_the_check_finds_what_a_job_does_too_early(body: str, wrong: bool) -> None:
    source = f"class C:\n def job(self, tx):\n  {body}\n def helper(self):\n  self._counters.add('x')"
    assert bool(breaches(source)) is wrong


def test_jobs_count_log_and_spend_only_after_the_commit() -> None:
    modules = [path for folder in ("daemon", "store") for path in (ROOT / folder).rglob("*.py") if path != WRITER]
    found = {path.relative_to(ROOT).as_posix(): breaches(path.read_text("utf-8")) for path in modules}
    assert {name: calls for name, calls in found.items() if calls} == {}
