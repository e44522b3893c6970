"""Half precision: which values of a float32 model are stored in 16 bits, by what the operators' contracts say.

Products take operands of 16 bits and add in float32, as their contracts promise (``accumulate``). Whatever else
computes with values of 16 bits stores its result so, unless it could leave their range or decides places with them; it
then stays float32, and the reason is kept. Inputs and outputs of the model keep their type.

The classes are those of mixed-precision training (Micikevicius et al., "Mixed Precision Training", 2018).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np
import onnx_ir as ir

from accord.contract.contract import Contract, Parameter
from accord.contract.registry import BUILT_IN, contract_for
from accord.errors import AccordError
from accord.ir.patch import Patch, patch_from
from accord.ir.reason import Reason
from accord.passes.rule import Rule, RuleContext

__all__ = ["StoreHalf"]

_F32: Final = ir.DataType.FLOAT
#: Constants beyond this stand for infinity, as exporters write masks and bounds.
_INFINITE: Final = 1e30

_EXPONENTIAL: Final = "its results leave the range of 16 bits for arguments that are not large"
_SUM: Final = "it sums what may be long axes, and its results may leave the range of 16 bits"
_LOSS: Final = "small differences of a loss are what matters"
_PLACES: Final = "its values decide places"

#: Why operators of ONNX stay float32, whatever their contracts would allow.
_FULL: Final[dict[str, str]] = {
    **dict.fromkeys(("Exp", "Pow", "Cosh", "Sinh", "Tan", "Acosh", "Atanh", "Reciprocal"), _EXPONENTIAL),
    **dict.fromkeys(
        "ReduceSum ReduceSumSquare ReduceL1 ReduceL2 ReduceProd ReduceLogSum ReduceLogSumExp CumSum CumProd LpPool "
        "GlobalLpPool LRN LpNormalization MeanVarianceNormalization Det".split(),
        _SUM,
    ),
    **dict.fromkeys(("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss", "LogSoftmax"), _LOSS),
    **dict.fromkeys(
        "TopK ArgMax ArgMin NonMaxSuppression RoiAlign MaxRoiPool GridSample AffineGrid Unique MaxUnpool Range Mod "
        "Floor Ceil Round Equal Greater GreaterOrEqual Less LessOrEqual IsInf IsNaN".split(),
        _PLACES,
    ),
}
#: Operators that compute with 16 bits though their contracts put them into no class: they choose, average or blend.
_FOLLOWING: Final = frozenset(
    "MaxPool AveragePool BatchNormalization Resize Upsample Dropout Compress GatherElements GatherND ScatterElements "
    "ScatterND Trilu OneHot ReverseSequence CenterCropPad SpaceToDepth DepthToSpace RotaryEmbedding Col2Im".split()
)


class _Kind(enum.Enum):
    """Where a float32 value comes from."""

    HALF = "stored in 16 bits"
    NEUTRAL = "a constant, or an input"
    WIDE = "computed in float32"


class StoreHalf(Rule):
    """An operator of float32 → the same of 16 bits between casts, where its contract and its operands allow it."""

    name: ClassVar[str] = "store-half"

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with operands and results cast; casts that meet another are removed by other rules."""
        stored = context.analyzer.storage
        if stored is None or node.op_type in ("Cast", "Constant") or not _touches(node, context):
            return None
        if any(isinstance(a.value, ir.Graph) for a in node.attributes.values()):
            return None  # the nodes of its bodies are looked at one by one
        target = ir.DataType[stored.upper()]
        try:
            contract = contract_for(node.domain, node.op_type, _version(node, context))
        except AccordError:
            return Reason("nothing is known of its types")
        refusal = _refusal(contract, stored)
        if refusal is not None:
            return refusal
        types = _input_types(contract.semantic.inputs, len(node.inputs))
        product = contract.scheduling.fuses == "contraction"
        wanted: set[str] = set()
        for i, (v, t) in enumerate(zip(node.inputs, types, strict=True)):
            if not _is_f32(v, context):
                continue
            kind = _kind(v, target, context)
            if (product and i < 3) or (kind is _Kind.HALF and not product):
                wanted.add(t)
        if not wanted and _reads_weights(contract, node, context):
            wanted.add(types[0])
        if not wanted:
            return None
        for t in wanted:
            allowed = contract.semantic.types.get(t, frozenset((t,)))
            if f"tensor({stored})" not in allowed:
                return Reason(f"it takes no {stored}")
        operands = [v for v, t in zip(node.inputs, types, strict=True) if t in wanted and _is_f32(v, context)]
        wide = next((v for v in operands if _kind(v, target, context) is _Kind.WIDE), None)
        if wide is not None and not product:
            return Reason(f"'{wide.name if wide is not None else '?'}' is computed in float32")
        for v in operands:
            content = context.constant(v)
            if content is not None and not _fits(content, target):
                return Reason(f"'{v.name if v is not None else '?'}' has values that {stored} does not hold")
        return self._patch(
            node, context, target, wanted, types, _input_types(contract.semantic.outputs, len(node.outputs))
        )

    def _patch(
        self,
        node: ir.Node,
        context: RuleContext,
        target: ir.DataType,
        wanted: set[str],
        types: Sequence[str],
        result_types: Sequence[str],
    ) -> Patch:
        b = context.builder()

        def narrowed(value: ir.Value) -> ir.Value:
            maker = value.producer()
            if maker is not None and _widens(maker, target, context):
                source = maker.inputs[0]
                assert source is not None
                return source
            content = context.constant(value)
            if content is None:
                return b("Cast", value, to=int(target))
            finite = np.finfo(target.numpy()) if target == ir.DataType.FLOAT16 else None
            limited = content if finite is None else np.clip(content, float(finite.min), float(finite.max))
            return b.const(np.where(np.isinf(content), content, limited).astype(target.numpy()), value.name)

        inputs = [
            narrowed(v) if v is not None and t in wanted and _is_f32(v, context) else v
            for v, t in zip(node.inputs, types, strict=True)
        ]
        attributes: dict[str, Any] = dict(node.attributes.items())
        made = b.multi(node.op_type, len(node.outputs), *inputs, domain=node.domain, **attributes)
        b.nodes[-1].name = node.name  # it is the same operator, and people look for it by this name
        results: list[ir.Value | None] = []
        for old, new, t in zip(node.outputs, made, result_types, strict=True):
            if old.name and t in wanted and _is_f32(old, context):
                results.append(b("Cast", new, to=int(_F32)))
            else:
                results.append(new if old.uses() or old.is_graph_output() else None)
                if not old.name:
                    new.name = ""
        return patch_from(b, node, results, str(target.name).lower())


def _version(node: ir.Node, context: RuleContext) -> int:
    return int(context.model.opset_imports.get(node.domain, 1))


def _touches(node: ir.Node, context: RuleContext) -> bool:
    return any(_is_f32(v, context) for v in node.inputs) and any(_is_f32(v, context) for v in node.outputs)


def _is_f32(value: ir.Value | None, context: RuleContext) -> bool:
    return value is not None and context.tensor(value).dtype == _F32


def _input_types(parameters: Sequence[Parameter], count: int) -> list[str]:
    """The type string of each of ``count`` inputs or outputs; the last parameter may stand for several."""
    if not parameters:
        return [""] * count
    return [parameters[min(i, len(parameters) - 1)].type for i in range(count)]


def _refusal(contract: Contract, stored: str) -> Reason | None:
    """Why an operator stays float32 whatever its operands are."""
    s = contract.semantic
    why = _FULL.get(s.name) if s.domain == "" else None
    if why is not None:
        return Reason(why)
    fuses = contract.scheduling.fuses
    if fuses in ("reduction", "contraction") and contract.execution.accumulate.get(stored) not in (
        "float32",
        "float64",
    ):
        return Reason(f"its contract does not promise sums of {stored} in float32")
    if fuses == "opaque" and s.name not in _FOLLOWING and (s.domain in BUILT_IN or not contract.execution.accumulate):
        return Reason("its contract does not say that it may compute with 16 bits")
    return None


def _kind(value: ir.Value | None, target: ir.DataType, context: RuleContext) -> _Kind:
    maker = None if value is None else value.producer()
    if value is None or maker is None or context.tensor(value).is_const:
        return _Kind.NEUTRAL
    if maker.domain == "" and maker.op_type == "Cast":
        source = context.tensor(maker.inputs[0]).dtype
        if source == target:
            return _Kind.HALF
        return _Kind.NEUTRAL if source == ir.DataType.BOOL else _Kind.WIDE
    if (
        maker.domain == ""
        and maker.op_type in _VIEWS
        and all(_kind(v, target, context) is _Kind.NEUTRAL for v in maker.inputs if _is_f32(v, context))
    ):
        return _Kind.NEUTRAL
    return _Kind.WIDE


#: Operators whose results are elements of their inputs.
_VIEWS: Final = frozenset(
    "Reshape Transpose Squeeze Unsqueeze Flatten Slice Split Expand Tile Identity Concat Pad".split()
)


def _widens(node: ir.Node, target: ir.DataType, context: RuleContext) -> bool:
    return node.domain == "" and node.op_type == "Cast" and context.tensor(node.inputs[0]).dtype == target


def _reads_weights(contract: Contract, node: ir.Node, context: RuleContext) -> bool:
    """Whether a node chooses among weights: rows of an embedding."""
    return (
        contract.scheduling.fuses == "movement" and node.op_type == "Gather" and context.tensor(node.inputs[0]).is_const
    )


def _fits(content: np.ndarray[Any, Any], target: ir.DataType) -> bool:
    """Whether values are in the range of ``target``; those that stand for infinity become its greatest."""
    if target != ir.DataType.FLOAT16 or not content.size:
        return True
    sizes = np.abs(content[np.isfinite(content)])
    return not bool(((sizes > float(np.finfo(np.float16).max)) & (sizes < _INFINITE)).any())
