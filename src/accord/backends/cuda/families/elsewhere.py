"""Operators that the host computes, and why."""

from __future__ import annotations

from accord.backends.cuda.families.table import selects
from accord.backends.protocol import Kernel
from accord.backends.view import NodeView
from accord.ir.reason import Reason

__all__ = ["elsewhere"]

_TWISTER = "random numbers are those of NumPy's Mersenne twister, one sequence, so that a seed gives the same"
_WHY = {
    ("", "ImageDecoder"): "a library of the host's decodes images",
    **dict.fromkeys([("", n) for n in ("Bernoulli", "Multinomial", "RandomNormal", "RandomUniform")], _TWISTER),
    **dict.fromkeys([("", n) for n in ("RandomNormalLike", "RandomUniformLike")], _TWISTER),
    ("", "TfIdfVectorizer"): "n-grams are looked up one after the other, in a table of the host's",
    ("", "Unique"): "elements are sorted as wholes, and met one after the other",
    **dict.fromkeys(
        [("ai.onnx.ml", n) for n in ("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor")],
        "each row goes down its trees by a way of its own",
    ),
}


def elsewhere(view: NodeView) -> Kernel | Reason:
    """No kernel."""
    return Reason(_WHY[view.node.domain, view.node.op_type])


for _domain, _name in _WHY:
    selects(_name, domain=_domain)(elsewhere)
