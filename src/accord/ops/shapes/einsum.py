"""Shape rule of Einsum: labels of the equation to sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.facts import Fact, TensorFact
from accord.ir.infer import Inference
from accord.ops.shapes.common import operator, same_dtype, str_attr

_DOTS = "..."


@operator("Einsum", required=("equation",))
def einsum(n: Inference) -> list[Fact]:
    """The labels right of the arrow; without one, those that occur once, sorted, after the broadcast axes."""
    count = len(n.inputs)
    dtype = same_dtype(n, *range(count))
    equation = str_attr(n, "equation", "").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = [_labels(n, t, equation) for t in left.split(",")]
    n.require(len(terms) == count, "one term per input", expected=count, found=len(terms))
    sizes, dots = _bind(n, terms)
    if not arrow:
        used = Counter(label for term in terms for label in term if label != _DOTS)
        out = ([_DOTS] if any(_DOTS in t for t in terms) else []) + sorted(k for k, c in used.items() if c == 1)
    else:
        out = _labels(n, right, equation)
    shape: list[DimLike] = []
    for label in out:
        if label == _DOTS:
            if dots is None:
                return [TensorFact(dtype, None)]
            shape.extend(dots)
        elif label in sizes:
            shape.append(sizes[label])
        elif any(label in t for t in terms):
            shape.append(n.fresh())
        else:
            raise n.error("a label of the result is not in the inputs", expected="labels of the inputs", found=equation)
    n.require(len(set(out)) == len(out), "a label of the result is repeated", expected="once", found=equation)
    return [TensorFact(dtype, tuple(shape))]


def _labels(n: Inference, term: str, equation: str) -> list[str]:
    before, dots, after = term.partition(_DOTS)
    n.require(
        all(c.isalpha() for c in before + after),
        "malformed equation",
        expected="letters, '...', ',', '->'",
        found=equation,
    )
    return [*before, *([_DOTS] if dots else []), *after]


def _bind(n: Inference, terms: Sequence[Sequence[str]]) -> tuple[dict[str, DimLike], Shape | None]:
    """Sizes by label, and the shape that the ellipses broadcast to (None if a rank is unknown)."""
    sizes: dict[str, DimLike] = {}
    labelled: list[tuple[str, DimLike]] = []
    ellipses: list[Shape | None] = []
    for i, term in enumerate(terms):
        shape = n.tensor(i).shape
        if shape is None:
            if _DOTS in term:
                ellipses.append(None)
            continue
        named = len(term) - (_DOTS in term)
        hidden = len(shape) - named
        n.require(
            hidden == 0 or (hidden > 0 and _DOTS in term),
            "term and rank differ",
            expected=named,
            found=len(shape),
            value=i,
        )
        at = 0
        for label in term:
            if label == _DOTS:
                ellipses.append(shape[at : at + hidden])
                at += hidden
                continue
            d = shape[at]
            at += 1
            old = sizes.get(label, 1)
            if isinstance(old, int) and isinstance(d, int) and old != d and 1 not in (old, d):
                raise n.error(f"sizes of label {label} differ", expected=old, found=d, value=i)
            sizes[label] = D.broadcast(old, d)
            labelled.append((label, d))
    for label, d in labelled:
        n.agree(sizes[label], d, f"sizes of label {label}", ones=True)
    return sizes, n.broadcast(*ellipses)
