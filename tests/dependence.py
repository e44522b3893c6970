"""What kernels' texts do before they wait for those in front of them."""

from __future__ import annotations

import ast
import re

from accord.backends.cuda.lines import NEXT, WAIT

#: Calls that touch memory, by the last part of their name. Descriptors are the launch's own.
TOUCHES = re.compile(r"(^|_)(load|store|atomic|copy)|^async_")


def waits(text: str, name: str) -> bool:
    """Whether the kernel ``name`` of a module waits.

    Raises:
        AssertionError: it touches memory before, or some of its programs or warps wait twice or not at all.
    """
    module = ast.parse(text.replace(WAIT, "WAIT()").replace(NEXT, "NEXT()"))
    functions = {f.name: f for f in module.body if isinstance(f, ast.FunctionDef)}
    return _Path(functions, name).function(name, waited=False)


class _Path:
    def __init__(self, functions: dict[str, ast.FunctionDef], kernel: str) -> None:
        self._functions, self._kernel = functions, kernel
        self._waiting = any(  # it does in some function that the kernel may call
            isinstance(n, ast.Name) and n.id == "WAIT" for f in self._reached(kernel) for n in ast.walk(functions[f])
        )

    def _reached(self, name: str) -> set[str]:
        found, rest = set(), [name]
        while rest:
            found.add(current := rest.pop())
            names = {n.id for n in ast.walk(self._functions[current]) if isinstance(n, ast.Name)}
            rest += names & self._functions.keys() - found
        return found

    def function(self, name: str, *, waited: bool) -> bool:
        """Whether it has waited at the end of a function."""
        return self._block(self._functions[name].body, waited)

    def _block(self, body: list[ast.stmt], waited: bool) -> bool:
        for s in body:
            waited = self._statement(s, waited)
        return waited

    def _statement(self, s: ast.stmt, waited: bool) -> bool:
        if isinstance(s, ast.If):
            self._called(s.test, waited)
            ways = {self._block(s.body, waited), self._block(s.orelse, waited)}
            assert len(ways) == 1, f"{self._kernel} waits on one way alone: {ast.unparse(s.test)}"
            return ways.pop()
        if isinstance(s, ast.For | ast.While):
            self._called(s.iter if isinstance(s, ast.For) else s.test, waited)
            assert self._block(s.body, waited) == waited, f"{self._kernel} waits in a loop"
            return waited
        assert isinstance(s, ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return | ast.Pass), s
        return self._called(s, waited)

    def _called(self, node: ast.AST, waited: bool) -> bool:
        """All calls in an expression, and functions that are handed on."""
        parts = next((c for c in ast.walk(node) if isinstance(c, ast.Call) and _name(c) == "warp_specialize"), None)
        if parts is not None:  # groups of warps, each of which waits for itself
            ends = {self.function(ast.unparse(part.elts[0]), waited=waited) for part in parts.args[0].elts}
            assert len(ends) == 1, f"{self._kernel} waits in some groups of warps alone"
            return ends.pop()
        for n in ast.walk(node):
            if isinstance(n, ast.Call):
                name = _name(n)
                if name == "WAIT":
                    assert not waited, f"{self._kernel} waits twice"
                    waited = True
                assert name != "NEXT" or waited, f"{self._kernel} lets the next one start before it waits"
                touches = self._waiting and TOUCHES.search(name)
                assert waited or not touches, f"{self._kernel} touches memory before it waits: {ast.unparse(n)}"
            elif isinstance(n, ast.Name) and n.id in self._functions:
                waited = self.function(n.id, waited=waited)
        return waited


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
