"""Forests of decision trees: a vector of rows goes down each tree in step, a few rows one by one.

Every node asks ``x[feature] <= split``; other comparisons and sets of members become such nodes when a forest is made,
and leaves are their own children, so all lanes take as many steps as the tree is deep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from accord.backends.cpu.host import start
from accord.backends.cpu.images import Lanes
from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder, vector
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.protocol import Array
from accord.expr.lang import Expr, operand
from accord.expr.primitives import isnan, max_, min_, select
from accord.record import record

__all__ = ["Forest", "Question", "TreeCode", "codes_of", "descend", "forest_of"]

#: Vectors of rows that are under way at a time, to hide how long a gather takes.
_VECTORS = 4
#: Rows from which on they are walked as vectors.
_LEAST_ROWS = 8


@record
class Question:
    """An interior node. Children are numbers of questions, or ``-1 - leaf``.

    Attributes:
        feature: Column that it looks at.
        mode: "LEQ", "LT", "GTE", "GT", "EQ", "NEQ" or "MEMBER".
        values: What the column is compared with; one, or the members of a set.
        yes: Child where it holds.
        no: Child where it does not.
        missing: NaN goes to ``yes``, else to ``no``.
    """

    feature: int
    mode: str
    values: tuple[float, ...]
    yes: int
    no: int
    missing: bool


@record
class Forest:
    """Trees as machine code reads them; a node's children are at ``2 * node``, for "yes", and after it.

    Attributes:
        dtype: Of rows and splits.
        columns: Columns that a row must have at least.
        features: int32 [nodes].
        splits: [nodes].
        children: int32 [2 nodes].
        missing: int32 [nodes], whether NaN goes to "yes".
        roots: int64 [trees].
        depths: int64 [trees].
        votes: int32 [nodes + 1]: where the votes of each node's leaf begin.
        targets: int32 [votes].
        weights: float64 [votes].
    """

    dtype: str
    columns: int
    features: Array
    splits: Array
    children: Array
    missing: Array
    roots: Array
    depths: Array
    votes: Array
    targets: Array
    weights: Array

    @cached_property
    def single(self) -> bool:
        """Each leaf has one vote, for the only target."""
        leaves = np.diff(self.votes)[self.children[::2] == np.arange(len(self.features))]
        return bool((leaves == 1).all()) and not self.targets.any()

    @cached_property
    def unordered(self) -> str:
        """Which nodes take NaN for a "yes": "all", "none" or "some"."""
        asks = self.children[::2] != np.arange(len(self.features))
        found = set(self.missing[asks].tolist())
        return "some" if len(found) > 1 else "all" if 1 in found else "none"


def forest_of(
    questions: Sequence[Question],
    roots: Sequence[int],
    leaves: Sequence[Sequence[tuple[int, float]]],
    dtype: str,
) -> Forest | str:
    """A forest, or why there is none.

    Args:
        questions: Interior nodes.
        roots: The root of each tree, as a child of :class:`Question`.
        leaves: For each leaf its votes: targets and weights.
        dtype: Of the rows, "f32" or "f64".
    """
    real = np.dtype(np.float32 if dtype == "f32" else np.float64)
    nodes: list[tuple[int, float, int, int, bool]] = []  # feature, split, yes, no, missing
    first: list[int] = []
    for q in questions:
        first.append(len(nodes))
        made = _plain(q, real, len(nodes))
        if isinstance(made, str):
            return made
        nodes += made
    inner = len(nodes)

    def place(child: int) -> int:
        return first[child] if child >= 0 else inner - 1 - child

    total = inner + len(leaves)
    children = np.repeat(np.arange(total, dtype=np.int32), 2)
    features, splits, missing = np.zeros(total, np.int32), np.zeros(total, real), np.zeros(total, np.int32)
    at = 0
    for number, q in enumerate(questions):
        stop = first[number + 1] if number + 1 < len(questions) else inner
        for feature, split, yes, no, nan in nodes[at:stop]:
            features[at], splits[at], missing[at] = feature, split, nan
            ends = {_YES: place(q.yes), _NO: place(q.no)}
            children[2 * at], children[2 * at + 1] = ends.get(yes, yes), ends.get(no, no)
            at += 1
    starts = np.array([place(r) for r in roots], np.int64)
    depths = _depths(children, inner, starts)
    if depths is None:
        return "the nodes of a tree form a cycle"
    counts = np.zeros(total + 1, np.int32)
    counts[inner + 1 :] = [len(votes) for votes in leaves]
    pairs = [pair for votes in leaves for pair in votes]
    return Forest(
        dtype,
        1 + max((q.feature for q in questions), default=-1),
        features,
        splits,
        children,
        missing,
        starts,
        depths,
        np.cumsum(counts, dtype=np.int32),
        np.array([t for t, _ in pairs], np.int32),
        np.array([w for _, w in pairs], np.float64),
    )


#: Children of a question's own nodes that are its answers.
_YES, _NO = -1, -2


def _plain(q: Question, real: np.dtype[Any], at: int) -> list[tuple[int, float, int, int, bool]] | str:
    """A question as nodes that ask ``<=``, numbered from ``at`` on; or why that cannot be."""
    values = np.array(q.values).astype(real)
    if not values.size or not np.isfinite(values).all():
        return "a node compares with nothing, or with what is not finite"
    below = np.nextafter(values, real.type(-np.inf))
    f, m, one = q.feature, q.missing, values[0]
    simple = {
        "LEQ": (one, _YES, _NO, m),
        "LT": (below[0], _YES, _NO, m),
        "GT": (one, _NO, _YES, not m),
        "GTE": (below[0], _NO, _YES, not m),
    }
    if q.mode in simple:
        return [(f, *simple[q.mode])]
    if q.mode not in ("EQ", "NEQ", "MEMBER"):
        return f"comparison '{q.mode}' is unknown"
    yes, no, nan = (_NO, _YES, not m) if q.mode == "NEQ" else (_YES, _NO, m)
    found: list[tuple[int, float, int, int, bool]] = []
    for k, (value, lower) in enumerate(zip(values, below, strict=True)):
        other = no if k + 1 == len(values) else at + 2 * (k + 1)
        found.append((f, value, at + 2 * k + 1, other, nan))
        found.append((f, lower, other, yes, False))  # NaN comes here only where it counts as "yes"
    return found


def _depths(children: Array, inner: int, roots: Array) -> Array | None:
    """Steps from each root to its lowest leaf; None where there is a cycle."""
    depth = np.full(len(children) // 2, -1, np.int64)
    depth[inner:] = 0
    for root in roots.tolist():
        pending, open_ = [root], set()
        while pending:
            node = pending[-1]
            if depth[node] >= 0:
                pending.pop()
                continue
            below = children[2 * node : 2 * node + 2].tolist()
            unknown = [c for c in below if depth[c] < 0]
            if not unknown:
                depth[node] = 1 + max(depth[c] for c in below)
                open_.discard(pending.pop())
            elif node in open_:
                return None
            else:
                open_.add(node)
                pending += unknown
    return depth[roots]


def descend(forest: Forest, x: Array, targets: int, kind: str) -> Array:
    """What the trees' votes come to: float64 [rows, targets]; without a vote zero.

    Args:
        forest: The trees.
        x: Rows of the forest's dtype, row-major.
        targets: How many there are.
        kind: "SUM", "MIN" or "MAX".

    Raises:
        ValueError: the rows have too few columns.
    """
    rows, columns = x.shape
    if columns < forest.columns:
        raise ValueError(f"the trees ask for {forest.columns} columns, and there are {columns}")
    code = codes_of(forest, targets, kind)[int(rows >= _LEAST_ROWS)]
    tasks = -(-rows // code.block)
    result = np.full((tasks * code.block, targets), 0.0 if kind == "SUM" else np.nan)
    arrays = (forest.features, forest.splits, forest.children, forest.missing, forest.roots, forest.depths)
    votes = (forest.votes, forest.targets, forest.weights)
    start(code, (rows, columns, len(forest.roots), targets), (x, *arrays, *votes, result), tasks)
    return result[:rows] if kind == "SUM" else np.nan_to_num(result[:rows], nan=0.0)


def codes_of(forest: Forest, targets: int, kind: str) -> tuple[TreeCode, TreeCode]:
    """The code for few rows and for many."""
    single = forest.single and targets == 1
    few, many = (TreeCode(forest.dtype, kind, forest.unordered, single, wide) for wide in (False, True))
    return few, many


@record
class TreeCode(KernelCode):
    """A task is a block of rows. Parameters: rows, columns, trees, targets.

    Operands: rows, the arrays of :class:`Forest` in order, result (float64, whole blocks).

    Attributes:
        dtype: Of the rows.
        kind: "SUM", "MIN" or "MAX".
        unordered: See :attr:`Forest.unordered`.
        single: See :attr:`Forest.single`.
        wide: Lanes are rows; else rows are walked one by one.
    """

    dtype: str
    kind: str
    unordered: str
    single: bool
    wide: bool

    @property
    def symbol(self) -> str:
        """Name by content."""
        marks = f"{'_single' if self.single else ''}{'_wide' if self.wide else ''}"
        return f"trees_{self.dtype}_{self.kind.lower()}_{self.unordered}{marks}"

    @property
    def width(self) -> int:
        """Rows of a vector."""
        return machine().width(64) if self.wide else 1

    @property
    def vectors(self) -> int:
        """Vectors that go down a tree at a time."""
        return _VECTORS if self.wide else 1

    @property
    def block(self) -> int:
        """Rows of a task."""
        return self.vectors * self.width

    def module(self, name: str) -> str:
        """LLVM text."""
        b, width = Builder(name), self.width
        rows, columns, trees, targets = (b.param(i) for i in range(4))
        names = "x features splits children missing roots depths votes targets weights result".split()
        at = {n: b.operand(i) for i, n in enumerate(names)}
        with b.loop("%first", "%last") as task:
            first = b.mul(task, self.block)
            lanes = [Lanes(b, width, b.add(first, v * width), None) for v in range(self.vectors)]
            places = [self._row(each, rows, columns) for each in lanes]
            none = [each.printer.splat("f64", _double(0.0 if self.kind == "SUM" else np.nan), width) for each in lanes]
            sums = tuple((vector("f64", width), n) for n in none) if self.single else ()
            with b.loop_carrying(0, trees, 1, sums) as (t, totals, later):
                root, depth = (b.op(f"load i64, ptr {b.address(at[n], 'i64', t)}") for n in ("roots", "depths"))
                top = tuple((vector("i64", width), each.spread(root)) for each in lanes)
                with b.loop_carrying(0, depth, 1, top) as (_, nodes, below):
                    below += [self._step(x, at, n, p) for x, n, p in zip(lanes, nodes, places, strict=True)]
                if self.single:
                    later += [
                        self._joined(b, width, total, x.gather("f64", at["weights"], self._vote(x, at, leaf)))
                        for x, total, leaf in zip(lanes, totals, below, strict=True)
                    ]
                else:
                    for each, leaf in zip(lanes, below, strict=True):
                        self._cast_votes(each, at, leaf, targets)
            for each, total in zip(lanes, later, strict=True) if self.single else ():
                each.printer.store("f64", total, b.address(at["result"], "f64", each.start))
        return b.module()

    def _row(self, lanes: Lanes, rows: str, columns: str) -> str:
        """Where each lane's row begins; those after the last are the last one again."""
        b, width, type_ = lanes.b, lanes.width, vector("i64", lanes.width)
        last = lanes.spread(b.sub(rows, 1))
        suffix = "i64" if width == 1 else f"v{width}i64"
        b.declare(f"declare {type_} @llvm.smin.{suffix}({type_}, {type_})")
        row = b.op(f"call {type_} @llvm.smin.{suffix}({type_} {lanes.numbers()}, {type_} {last})")
        return b.op(f"mul {type_} {row}, {lanes.spread(columns)}")

    def _word(self, lanes: Lanes, base: str, index: str) -> str:
        """Elements of an int32 table as i64."""
        return lanes.cast("i32", "i64", lanes.gather("i32", base, index))

    def _step(self, lanes: Lanes, at: Mapping[str, str], node: str, place: str) -> str:
        """The child that each lane goes to."""
        b, width = lanes.b, lanes.width
        ints, reals = vector("i64", width), vector(self.dtype, width)
        index = b.op(f"add {ints} {place}, {self._word(lanes, at['features'], node)}")
        value = lanes.gather(self.dtype, at["x"], index)
        split = lanes.gather(self.dtype, at["splits"], node)
        holds = b.op(f"fcmp {'ule' if self.unordered == 'all' else 'ole'} {reals} {value}, {split}")
        flags = vector("bool", width)
        if self.unordered == "some":
            nan = b.op(f"fcmp uno {reals} {value}, {value}")
            counts = b.op(f"icmp ne {ints} {self._word(lanes, at['missing'], node)}, {lanes.spread('0')}")
            holds = b.op(f"or {flags} {holds}, {b.op(f'and {flags} {nan}, {counts}')}")
        fails = b.op(f"xor {flags} {holds}, {lanes.printer.splat('bool', 'true', width)}")
        side = b.op(f"zext {flags} {fails} to {ints}")
        return self._word(lanes, at["children"], b.op(f"add {ints} {b.op(f'add {ints} {node}, {node}')}, {side}"))

    def _vote(self, lanes: Lanes, at: Mapping[str, str], leaf: str) -> str:
        return self._word(lanes, at["votes"], leaf)

    def _joined(self, b: Builder, width: int, total: str, vote: str) -> str:
        """A total and one more vote; NaN stands for no vote before."""
        a, v = operand(0, "f64"), operand(1, "f64")
        expr: Expr = a + v if self.kind == "SUM" else (min_ if self.kind == "MIN" else max_)(a, v)
        if self.kind != "SUM":
            expr = select(isnan(a), v, expr)
        return Printer(b, width).value(expr, [total, vote])

    def _cast_votes(self, lanes: Lanes, at: Mapping[str, str], leaf: str, targets: str) -> None:
        """Add the votes of each lane's leaf to the lane's row of the result."""
        b, width = lanes.b, lanes.width
        for k in range(width):
            node = leaf if width == 1 else b.op(f"extractelement {vector('i64', width)} {leaf}, i64 {k}")
            row = b.address(at["result"], "f64", b.mul(b.add(lanes.start, k), targets))
            one = Printer(b, 1)
            begin, end = (
                b.op(f"sext i32 {one.load('i32', b.address(at['votes'], 'i32', b.add(node, i)))} to i64")
                for i in range(2)
            )
            with b.loop(begin, end) as vote:
                inside = Printer(b, 1)
                target = b.op(f"sext i32 {inside.load('i32', b.address(at['targets'], 'i32', vote))} to i64")
                place = b.address(row, "f64", target)
                weight = inside.load("f64", b.address(at["weights"], "f64", vote))
                inside.store("f64", self._joined(b, 1, inside.load("f64", place), weight), place)


def _double(value: float) -> str:
    return f"0x{np.float64(value).view(np.uint64):016X}"
