"""Size expressions in declarations: ``"N"``, ``"2*H"``, ``"C // groups"``, ``"min(K, 8)"``, ``"C % groups == 0"``.

They are parsed with Python's own grammar and evaluated on symbolic sizes; nothing but arithmetic is allowed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from accord.errors import ContractError
from accord.ir import dims as D
from accord.ir.dims import DimLike

__all__ = ["evaluate_condition", "evaluate_size", "names_in", "parse", "shortfall"]

_FUNCTIONS: dict[str, Callable[..., DimLike]] = {"min": D.minimum, "max": D.maximum, "ceildiv": D.ceildiv}


def parse(text: str) -> ast.expr:
    """The syntax tree of a size expression or condition.

    Raises:
        ContractError: it is not one.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ContractError(f"'{text}' is no size expression: {error}") from error
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED):
            raise ContractError(
                f"'{text}' is no size expression",
                expected="names, integers, + - * // %, comparisons, min, max, ceildiv",
                found=type(node).__name__,
            )
    return tree


_ALLOWED = (
    ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.Name, ast.Constant, ast.Call, ast.Load,
    ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.USub, ast.And, ast.Or, ast.Not,
    ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE,
)  # fmt: skip


def names_in(text: str) -> set[str]:
    """Names that an expression uses."""
    return {n.id for n in ast.walk(parse(text)) if isinstance(n, ast.Name) and n.id not in _FUNCTIONS}


def evaluate_size(text: str, env: Mapping[str, DimLike]) -> DimLike | None:
    """The value of a size expression; None if a name in it has no value.

    Raises:
        ContractError: it is no size expression, or divides by zero.
    """
    try:
        return _size(parse(text), env)
    except KeyError:
        return None
    except ZeroDivisionError as error:
        raise ContractError(f"'{text}' divides by zero") from error


def _size(node: ast.expr, env: Mapping[str, DimLike]) -> DimLike:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return int(node.value)
    if isinstance(node, ast.Name):
        return env[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _size(node.operand, env) * -1
    if isinstance(node, ast.BinOp):
        a, b = _size(node.left, env), _size(node.right, env)
        if isinstance(node.op, ast.Add):
            return a + b
        if isinstance(node.op, ast.Sub):
            return a - b
        if isinstance(node.op, ast.Mult):
            return a * b
        if isinstance(node.op, ast.FloorDiv):
            return D.floordiv(a, b)
        return D.modulo(a, b)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        return _FUNCTIONS[node.func.id](*(_size(a, env) for a in node.args))
    raise ContractError(f"'{ast.unparse(node)}' is no size", expected="an integer expression")


def evaluate_condition(text: str, env: Mapping[str, DimLike]) -> bool | None:
    """The truth of a condition on sizes; None while a size in it is symbolic.

    Raises:
        ContractError: it is no condition.
    """
    try:
        return _truth(parse(text), env)
    except KeyError:
        return None
    except ZeroDivisionError:
        return False


def _truth(node: ast.expr, env: Mapping[str, DimLike]) -> bool | None:
    if isinstance(node, ast.BoolOp):
        parts = [_truth(v, env) for v in node.values]
        decisive = isinstance(node.op, ast.Or)
        if decisive in parts:
            return decisive
        return None if None in parts else not decisive
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = _truth(node.operand, env)
        return None if inner is None else not inner
    if isinstance(node, ast.Compare):
        values = [_size(v, env) for v in (node.left, *node.comparators)]
        results = [_compare(op, a, b) for op, a, b in zip(node.ops, values, values[1:], strict=False)]
        if False in results:
            return False
        return None if None in results else True
    raise ContractError(f"'{ast.unparse(node)}' is no condition", expected="a comparison")


def shortfall(text: str, env: Mapping[str, DimLike]) -> DimLike | None:
    """A size that is 0 exactly where a condition holds, and positive where it does not.

    None if a name in it has no value.
    """
    try:
        return _shortfall(parse(text), env, holds=True)
    except KeyError:
        return None


def _shortfall(node: ast.expr, env: Mapping[str, DimLike], *, holds: bool) -> DimLike:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _shortfall(node.operand, env, holds=not holds)
    if isinstance(node, ast.BoolOp):
        parts = [_shortfall(v, env, holds=holds) for v in node.values]
        return _joined(parts, every=isinstance(node.op, ast.And) == holds)
    if isinstance(node, ast.Compare):
        values = [_size(v, env) for v in (node.left, *node.comparators)]
        pairs = zip(node.ops, values, values[1:], strict=False)
        return _joined([_distance(op, a, b, holds=holds) for op, a, b in pairs], every=holds)
    raise ContractError(f"'{ast.unparse(node)}' is no condition", expected="a comparison")


def _joined(parts: list[DimLike], *, every: bool) -> DimLike:
    total = parts[0]
    for p in parts[1:]:
        total = total + p if every else total * p
    return total


def _distance(op: ast.cmpop, a: DimLike, b: DimLike, *, holds: bool) -> DimLike:
    gap = a - b
    if isinstance(op, (ast.Eq, ast.NotEq)):
        apart = D.minimum(gap * gap, 1)
        return apart if isinstance(op, ast.Eq) == holds else 1 - apart
    if isinstance(op, (ast.Gt, ast.GtE)):
        gap = gap * -1
    strict = isinstance(op, (ast.Lt, ast.Gt))
    return D.maximum(gap + strict, 0) if holds else D.maximum(gap * -1 + (not strict), 0)


def _compare(op: ast.cmpop, a: DimLike, b: DimLike) -> bool | None:
    if isinstance(op, (ast.Gt, ast.GtE)):
        a, b = b, a
    if isinstance(op, (ast.Eq, ast.NotEq)):
        gap = a - b
        equal = gap == 0 if isinstance(gap, int) else None
        return equal if isinstance(op, ast.Eq) or equal is None else not equal
    strict = 1 if isinstance(op, (ast.Lt, ast.Gt)) else 0
    if D.proves_le(a + strict, b):
        return True
    return False if D.proves_le(b, a - (1 - strict)) else None
