"""Shape inference: facts of a node's outputs from the facts of its inputs.

Each operator's rule is registered with :func:`rule` (the rules of ONNX are in :mod:`accord.ops.shapes`) and works on
symbolic sizes. Operators without a rule of ours go through ONNX's own inference, which knows integers and plain names
only; sizes it cannot state become new symbols. Small constant results are computed at once, so that shape arithmetic
folds as facts are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import onnx_ir as ir

from accord.errors import ModelTypeError
from accord.ir import dims as D
from accord.ir.agreement import Agreement
from accord.ir.dims import DimLike, Shape
from accord.ir.facts import (
    UNKNOWN,
    Fact,
    FactTable,
    OptionalFact,
    SequenceFact,
    TensorFact,
    constant_fact,
    to_numpy,
)

__all__ = ["Analyzer", "Evaluator", "Inference", "ShapeRule", "op_name", "rule", "shape_rule"]

ShapeRule: TypeAlias = "Callable[[Inference], Sequence[Fact]]"
_RULES: dict[tuple[str, str], ShapeRule] = {}
_R = TypeVar("_R", bound="ShapeRule")


def rule(*names: str, domain: str = "") -> Callable[[_R], _R]:
    """Register the decorated function as the shape rule of the operators ``names`` of ``domain``."""

    def register(function: _R) -> _R:
        for name in names:
            _RULES[domain, name] = function
        return function

    return register


def shape_rule(domain: str, name: str) -> ShapeRule | None:
    """The shape rule of an operator, if one is registered."""
    return _RULES.get((domain, name))


def op_name(node: ir.Node) -> str:
    """``Conv`` or ``domain::Name``: how an operator is written in messages."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


class Inference:
    """What a shape rule sees: the node's attributes and its inputs' facts. It returns one fact per output.

    Attributes:
        node: The node, for its attributes; a rule never changes it.
        inputs: Facts of the inputs in order; ``UNKNOWN`` for an absent optional input.
        opset: Version of the operator's domain that the model declares.
        analyzer: For rules that infer a body graph (If, Loop, Scan).
    """

    def __init__(self, node: ir.Node, analyzer: Analyzer) -> None:
        self.node = node
        self.analyzer = analyzer
        self.opset = analyzer.opsets.get(node.domain, 1)
        self.inputs: tuple[Fact, ...] = tuple(analyzer.facts.get(v) for v in node.inputs)
        self._fresh = 0

    def tensor(self, index: int) -> TensorFact:
        """Fact of input ``index`` as a tensor; unknown in all parts where the input is absent or no tensor."""
        fact = self.inputs[index] if index < len(self.inputs) else UNKNOWN
        return fact if isinstance(fact, TensorFact) else TensorFact(None, None)

    def has(self, index: int) -> bool:
        """True if input ``index`` is given."""
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def attr(self, name: str, default: Any = None) -> Any:
        """Attribute ``name`` as a Python value (int, float, str, tuple, TensorProtocol, Graph), or ``default``."""
        attribute = self.node.attributes.get(name)
        if attribute is not None and attribute.is_ref():
            attribute = self.analyzer.attributes.get(attribute.ref_attr_name or "")
        return default if attribute is None else attribute.value

    def fresh(self, lower: int = 0) -> D.Dim:
        """A new symbol, named after the node's first output, for a size that only a run can tell."""
        analyzer = self.analyzer
        name = next((o.name for o in self.node.outputs if o.name), None) or self.node.name
        if name is None:
            name = analyzer.facts.label(self.node)
        symbol = f"{analyzer.scope}{name}.{self._fresh}"
        self._fresh += 1
        analyzer.created.add(symbol)
        return D.symbol(symbol, lower)

    def fresh_shape(self, rank: int) -> Shape:
        """``rank`` new symbols."""
        return tuple(self.fresh() for _ in range(rank))

    def axis(self, axis: int, rank: int) -> int:
        """``axis`` counted from the front.

        Raises:
            ModelTypeError: it is outside ``[-rank, rank)``.
        """
        if not -rank <= axis < max(rank, 1):
            raise self.error("axis is out of range", expected=f"-{rank} <= axis < {rank}", found=axis)
        return axis + rank if axis < 0 else axis

    def require(
        self,
        condition: bool,
        message: str,
        *,
        expected: Any = None,
        found: Any = None,
        value: int | None = None,
    ) -> None:
        """Raise :class:`ModelTypeError` for this node unless ``condition``."""
        if not condition:
            raise self.error(message, expected=expected, found=found, value=value)

    def check(self) -> None:
        """Raise :class:`ModelTypeError` if the operator's shape rule, where it has one, refuses this node."""
        found = _RULES.get((self.node.domain, self.node.op_type))
        if found is not None:
            found(self)

    def agree(self, size: DimLike, other: DimLike, what: str, *, ones: bool = False, condition: str = "") -> None:
        """State that the rule's result is right only if two sizes agree, see :class:`Agreement`.

        A rule that refuses integers that differ states the same for symbols: a kernel that was made for the result
        would else read past the end of an input.
        """
        stated = self.analyzer.stated
        if stated is None or (isinstance(size, int) and isinstance(other, int)):
            return
        if size != other and not (ones and other == 1):
            stated.append(Agreement(size, other, what, ones, condition))

    def error(
        self, message: str, *, expected: Any = None, found: Any = None, value: int | None = None
    ) -> ModelTypeError:
        """A :class:`ModelTypeError` that names this node; ``value`` is the index of the input at fault."""
        name = None
        if value is not None and value < len(self.node.inputs):
            v = self.node.inputs[value]
            name = v.name if v is not None else f"input {value}"
        return ModelTypeError(
            message,
            node=self.node.name or next((o.name for o in self.node.outputs if o.name), "?"),
            op=op_name(self.node),
            value=name,
            expected=expected,
            found=found,
            remedy="Check the exporter or the declared input shapes.",
        )

    def broadcast(self, *shapes: Shape | None) -> Shape | None:
        """The shape that ``shapes`` broadcast to (NumPy's rules); None if a rank is unknown.

        Raises:
            ModelTypeError: two known sizes differ and neither is 1.
        """
        if any(s is None for s in shapes):
            return None
        known: list[Shape] = [s for s in shapes if s is not None]
        rank = max((len(s) for s in known), default=0)
        out: list[DimLike] = []
        for axis in range(rank):
            size: DimLike = 1
            for s in known:
                i = axis - rank + len(s)
                if i < 0:
                    continue
                d = s[i]
                if isinstance(size, int) and isinstance(d, int) and size != d and 1 not in (size, d):
                    raise self.error(
                        f"inputs do not broadcast on axis {axis - rank}",
                        expected="equal sizes, or 1",
                        found=" and ".join(str(list(k)) for k in known),
                    )
                size = D.broadcast(size, d)
            out.append(size)
        for s in known if self.analyzer.stated is not None else ():
            for d, size in zip(reversed(s), reversed(out), strict=False):
                self.agree(size, d, "sizes that are broadcast", ones=True)
        return tuple(out)


#: Operators of the ONNX domain that give other values with every run.
RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
)

#: Results up to this many elements are computed while facts are made.
FOLD_ELEMENTS = 1024

#: Computes a node on arrays: ``(node, inputs, opset) -> outputs``, or None where it cannot.
Evaluator: TypeAlias = "Callable[[ir.Node, Sequence[Any], int], Sequence[Any] | None]"


class Analyzer:
    """Makes facts: for one node, or for a graph in order.

    Attributes:
        facts: The table that is read and written.
        opsets: Version by domain.
        evaluator: Computes small constant nodes (the reference backend); None leaves them symbolic.
        functions: Model-local functions by identifier; the facts of a call come from the function's body.
        scope: Prefix of new symbols, so that two calls of one function do not share them.
        attributes: Attributes of the call, which nodes of a function's body refer to.
        created: Names of the symbols that :meth:`Inference.fresh` made.
        stated: Where :meth:`Inference.agree` puts what it is told; None: nowhere.
        precision: What operands of float32 products may be rounded to: "float32" (nothing), "tf32" or "bfloat16".
        storage: What values of a float32 model are stored in where contracts allow it: "float16", "bfloat16"; None: as
            the model says.
        choices: By name of a node, which of the alternatives of its kernel to take; others follow the rule.
        device: What kind of device it is for; users' operators may be written differently for each.
    """

    def __init__(
        self,
        facts: FactTable,
        opsets: Mapping[str, int],
        *,
        evaluator: Evaluator | None = None,
        functions: Mapping[Any, ir.Function] | None = None,
        scope: str = "",
        attributes: Mapping[str, ir.Attr] | None = None,
    ) -> None:
        self.facts = facts
        self.opsets = opsets
        self.evaluator = evaluator
        self.functions = functions if functions is not None else {}
        self.scope = scope
        self.attributes = attributes if attributes is not None else {}
        self.created: set[str] = set()
        self.stated: list[Agreement] | None = None
        self.precision = "float32"
        self.storage: str | None = None
        self.choices: Mapping[str, str] = {}
        self.device = "cpu"

    def infer_graph(self, nodes: Iterable[ir.Node]) -> None:
        """Write facts for all outputs of ``nodes``, which must be in topological order.

        Raises:
            ModelTypeError: a node's inputs contradict its operator.
        """
        for node in nodes:
            self.infer(node)

    def infer(self, node: ir.Node) -> None:
        """Write the facts of ``node``'s outputs; the facts of its inputs must be known.

        Raises:
            ModelTypeError: the inputs contradict the operator.
        """
        context = Inference(node, self)
        function = self._function(node)
        outputs = self._outputs(node, context, function)
        outputs = outputs[: len(node.outputs)]
        outputs += [UNKNOWN] * (len(node.outputs) - len(outputs))
        if self.evaluator is not None and function is None:
            outputs = self._fold(context, outputs, self.evaluator)
        for value, fact in zip(node.outputs, outputs, strict=True):
            self.facts[value] = fact

    def agreements(self, node: ir.Node) -> list[Agreement]:
        """What the facts of ``node``'s outputs take for granted; no fact is changed.

        Raises:
            ModelTypeError: the inputs contradict the operator.
        """
        self.stated = []
        try:
            self._outputs(node, Inference(node, self), self._function(node))
            return self.stated
        finally:
            self.stated = None

    def _function(self, node: ir.Node) -> ir.Function | None:
        return self.functions.get(node.op_identifier()) if self.functions else None

    def _outputs(self, node: ir.Node, context: Inference, function: ir.Function | None) -> list[Fact]:
        if function is not None:
            return self._infer_call(node, function)
        chosen = _RULES.get((node.domain, node.op_type))
        return list(chosen(context)) if chosen is not None else _onnx_inference(context)

    def _infer_call(self, call: ir.Node, function: ir.Function) -> list[Fact]:
        inner = self.enter(call, function)
        return [inner.facts.get(o) for o in function.outputs]

    def enter(self, call: ir.Node, function: ir.Function) -> Analyzer:
        """The facts inside ``function`` for the inputs of ``call``.

        Raises:
            ModelTypeError: the inputs contradict an operator of the body.
        """
        name = next((o.name for o in call.outputs if o.name), None) or call.name or self.facts.label(call)
        # What the call leaves out has the function's default; what the call itself refers to is the caller's.
        attributes = {k: a for k, a in function.attributes.items() if not a.is_ref() and a.value is not None}
        for key, attribute in call.attributes.items():
            bound = self.attributes.get(attribute.ref_attr_name or "") if attribute.is_ref() else attribute
            if bound is not None:
                attributes[key] = bound
        inner = Analyzer(
            FactTable(),
            function.opset_imports,
            evaluator=self.evaluator,
            functions=self.functions,
            scope=f"{self.scope}{name}/",
            attributes=attributes,
        )
        inner.stated = self.stated
        inner.precision = self.precision
        inner.storage = self.storage
        inner.device = self.device
        for i, parameter in enumerate(function.inputs):
            inner.facts[parameter] = self.facts.get(call.inputs[i]) if i < len(call.inputs) else UNKNOWN
        inner.infer_graph(function)
        return inner

    def _fold(self, context: Inference, outputs: list[Fact], evaluator: Evaluator) -> list[Fact]:
        """Replace facts of small outputs by constants where every input is constant and small."""
        node = context.node
        if node.op_type in RANDOM:
            return outputs
        if not outputs or any(
            a.is_ref() or a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()
        ):
            return outputs
        for fact in outputs:
            if not (isinstance(fact, TensorFact) and fact.shape is not None) or fact.is_const:
                return outputs
            size = D.known_product(fact.shape)
            if size is None or size > FOLD_ELEMENTS:
                return outputs
        arrays: list[Any] = []
        for value, fact in zip(node.inputs, context.inputs, strict=True):
            array = None if value is None else _small_content(fact)
            if value is not None and array is None:
                return outputs
            arrays.append(array)
        results = evaluator(node, arrays, context.opset)
        if results is None:
            return outputs
        folded: list[Fact] = []
        for fact, result in zip(outputs, results, strict=False):
            if isinstance(result, np.ndarray) and isinstance(fact, TensorFact):
                folded.append(constant_fact(result))
            else:
                folded.append(fact)
        return folded


def _small_content(fact: Fact) -> np.ndarray[Any, Any] | None:
    """The content of a small constant, or of symbolic elements that are all integers; else None."""
    if not isinstance(fact, TensorFact):
        return None
    if fact.const is not None:
        return to_numpy(fact.const) if fact.const.size <= FOLD_ELEMENTS else None
    if fact.data is not None and D.is_known(fact.data) and fact.dtype is not None:
        array = np.array(fact.data, dtype=fact.dtype.numpy())
        return array[0].reshape(()) if fact.shape == () else array
    return None


# ONNX's own inference, for operators without a rule --------------------------------------------------------------


def _onnx_inference(context: Inference) -> list[Fact]:
    import onnx
    import onnx.defs
    import onnx.shape_inference

    node = context.node
    unknown: list[Fact] = [UNKNOWN] * len(node.outputs)
    try:
        schema = onnx.defs.get_schema(node.op_type, context.opset, node.domain)
    except onnx.defs.SchemaError:
        return unknown
    # Not serialize_node: values that a rule has just built have no names yet.
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain)
    proto.input.extend("" if value is None else f"i{i}" for i, value in enumerate(node.inputs))
    proto.output.extend(f"o{i}" for i in range(len(node.outputs)))
    proto.attribute.extend(
        ir.serde.serialize_reference_attribute(a) if a.is_ref() else ir.serde.serialize_attribute(a)
        for a in node.attributes.values()
    )
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    names: dict[str, DimLike] = {}
    for i, (value, fact) in enumerate(zip(node.inputs, context.inputs, strict=True)):
        if value is None:
            continue
        name = f"i{i}"
        type_proto = _type_proto(fact, names)
        if type_proto is not None:
            types[name] = type_proto
        if isinstance(fact, TensorFact) and fact.const is not None and fact.const.size <= FOLD_ELEMENTS:
            data[name] = ir.serde.serialize_tensor(fact.const)
    try:
        result = onnx.shape_inference.infer_node_outputs(
            schema, proto, types, data, opset_imports=[onnx.helper.make_opsetid(node.domain, context.opset)]
        )
    except (onnx.shape_inference.InferenceError, RuntimeError, KeyError) as error:
        raise context.error(f"type inference failed: {error}") from error
    return [
        _fact_of_proto(result[f"o{i}"], names, context) if f"o{i}" in result else UNKNOWN
        for i in range(len(node.outputs))
    ]


def _type_proto(fact: Fact, names: dict[str, DimLike]) -> Any:
    import onnx

    if isinstance(fact, TensorFact) and fact.dtype is not None:
        dims: list[int | str | None] | None = None
        if fact.shape is not None:
            dims = []
            for d in fact.shape:
                if isinstance(d, int):
                    dims.append(d)
                else:
                    name = f"d{len(names)}"
                    name = next((k for k, v in names.items() if v == d), name)
                    names[name] = d
                    dims.append(name)
        return onnx.helper.make_tensor_type_proto(int(fact.dtype), dims)
    if isinstance(fact, SequenceFact) and fact.element is not None:
        inner = _type_proto(fact.element, names)
        return None if inner is None else onnx.helper.make_sequence_type_proto(inner)
    if isinstance(fact, OptionalFact) and fact.element is not None:
        inner = _type_proto(fact.element, names)
        return None if inner is None else onnx.helper.make_optional_type_proto(inner)
    return None


def _fact_of_proto(proto: Any, names: Mapping[str, DimLike], context: Inference) -> Fact:
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        tensor = proto.tensor_type
        shape: Shape | None = None
        if tensor.HasField("shape"):
            out: list[DimLike] = []
            for d in tensor.shape.dim:
                if d.HasField("dim_value"):
                    out.append(d.dim_value)
                else:
                    out.append(names[d.dim_param] if d.dim_param in names else context.fresh())
            shape = tuple(out)
        return TensorFact(ir.DataType(tensor.elem_type) if tensor.elem_type else None, shape)
    if kind == "sequence_type":
        return SequenceFact(_fact_of_proto(proto.sequence_type.elem_type, names, context))
    if kind == "optional_type":
        return OptionalFact(_fact_of_proto(proto.optional_type.elem_type, names, context))
    return UNKNOWN
