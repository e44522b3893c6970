"""Kernels that are chosen when a run tells what the plan could not know: ranks, sizes, or the content of an input that
decides sizes (axes of a reduction, target of a Reshape).

A late kernel carries its node. When it first meets inputs of some shapes and deciding contents, it makes facts of them
and selects a kernel as for any other node; later runs find that kernel. So an operator needs nothing of its own for
being told late, and the machine code, whose sizes are parameters, is the same as everybody's.
"""

from __future__ import annotations

import threading
import warnings
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from accord.backends.memory import HOST, DeviceArray, Memory
from accord.backends.protocol import HostKernel, Kernel
from accord.errors import AccordError, FallbackWarning, UnsupportedError
from accord.ir import dims as D
from accord.ir.dims import DimLike
from accord.ir.reason import FUSED_DOMAIN, Reason
from accord.record import record

if TYPE_CHECKING:
    from accord.backends.view import NodeView
    from accord.ir.facts import TensorFact

__all__ = ["DECIDING", "LateCopy", "LateNode", "Maker", "late_node", "late_or"]

#: Inputs whose content a kernel's form depends on, and a number that the content may well be.
DECIDING: Mapping[str, Mapping[int, int]] = {
    "AffineGrid": {1: 2},
    **{key: {0: 2} for key in ("BlackmanWindow", "HammingWindow", "HannWindow", "ConstantOfShape")},
    "CenterCropPad": {1: 2},
    "Col2Im": {1: 2, 2: 1},
    **{key: {1: 0} for key in ("CumProd", "CumSum")},
    "DFT": {1: 4, 2: 1},
    **{key: {1: 1} for key in ("Expand", "Tile")},
    "MaxUnpool": {2: 4},
    "MelWeightMatrix": {0: 2, 1: 8, 2: 16, 3: 1, 4: 4},
    "OneHot": {1: 2},
    "Pad": {1: 0, 2: 0, 3: 0},
    "Range": {0: 0, 1: 2, 2: 1},
    **{
        f"Reduce{kind}": {1: 0}
        for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
    },
    "Reshape": {1: -1},
    "Resize": {1: 0, 2: 1, 3: 2},
    "STFT": {1: 1, 3: 2},
    "Slice": {1: 0, 2: 1, 3: 0, 4: 1},
    "Split": {1: 1},
    **{key: {1: 0} for key in ("Squeeze", "Unsqueeze")},
    "TopK": {1: 1},
    "Trilu": {1: 0},
}

#: Operators whose operands are rounded where that is asked for.
_ROUNDED = frozenset({"Conv", "Gemm", "MatMul"})

#: What a size is taken to be, to see whether a kernel would be found.
_SAMPLE = 2
#: Forms that a late kernel remembers.
_FORMS = 64


@record
class LateNode(HostKernel):
    """See the module's text; a backend says how a kernel is selected and started.

    Attributes:
        name: For people.
        model: The node as an ONNX file of its own, with the function that it calls if it calls one.
        deciding: Numbers of the inputs whose content matters.
        precision: What operands of products are rounded to because that was asked for; "" for nothing.
    """

    name: str = field()  # not the class's own default
    model: bytes = field()
    deciding: tuple[int, ...] = field()
    precision: str = ""
    _forms: OrderedDict[Any, Any] = field(default_factory=OrderedDict, compare=False, repr=False)
    _lock: Any = field(default_factory=threading.Lock, compare=False, repr=False)

    #: It is made of plain values, so a stored plan can hold it.
    portable = True

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.name, self.model, self.deciding, self.precision)

    @abstractmethod
    def form(self, view: NodeView) -> Any | Reason:
        """How to run the node, whose facts are all known; or why there is no kernel."""

    @abstractmethod
    def start(self, form: Any, inputs: Sequence[Any]) -> Sequence[Any]:
        """Run what :meth:`form` gave for inputs like these."""

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Outputs for ``inputs``, by a kernel for their shapes.

        Raises:
            AccordError: the inputs contradict the operator.
        """
        form = self._form(inputs)
        return self.without(inputs, form) if isinstance(form, Reason) else self.start(form, inputs)

    def _form(self, inputs: Sequence[Any]) -> Any | Reason:
        key = (
            *(None if a is None else (a.shape, a.dtype.str) for a in inputs),
            *(None if inputs[i] is None else np.asarray(inputs[i]).tobytes() for i in self.deciding),
        )
        with self._lock:
            found = self._forms.get(key)
            if found is None:
                found = self._forms[key] = self.form(self._view(inputs))
                if len(self._forms) > _FORMS:
                    self._forms.popitem(last=False)
            return found

    def _view(self, inputs: Sequence[Any]) -> NodeView:
        from accord.ir.facts import TensorFact, constant_fact

        facts: list[TensorFact | None] = []
        for i, a in enumerate(inputs):
            if a is None:
                facts.append(None)
            elif i in self.deciding:
                facts.append(constant_fact(np.array(a, order="C")))
            else:
                facts.append(TensorFact(constant_fact(np.empty(0, a.dtype)).dtype, tuple(a.shape)))
        return _view_of(self.model, facts, self.precision)

    def without(self, inputs: Sequence[Any], why: Reason) -> Sequence[Any]:
        """By the reference. Never silent: the plan took this node for one that has a kernel."""
        from accord.backends.reference import backend

        kernel = backend.select(self._view(inputs))
        if not isinstance(kernel, HostKernel):
            raise UnsupportedError("no kernel is generated for these inputs", found=str(why))
        warnings.warn(f"{self.name}: no kernel is generated for these inputs ({why})", FallbackWarning, stacklevel=2)
        return kernel.run(inputs)

    def refuses(self, view: NodeView) -> bool:
        """Whether there is no kernel for sizes and contents as they may well be."""
        for alike in (False, True):
            try:
                return isinstance(self.form(_view_of(self.model, _samples(view, alike=alike), self.precision)), Reason)
            except AccordError:  # they contradict each other, so this tells nothing
                continue
        return False


#: From a name, a model, deciding inputs and a precision to a kernel.
Maker = Callable[[str, bytes, tuple[int, ...], str], LateNode]


@record
class LateCopy(HostKernel):
    """Brings a value whose size only a run tells to another memory.

    Attributes:
        memory: The one that is not the host's.
        inwards: To that memory; if not, from there.
    """

    memory: Memory
    inwards: bool

    name = "copy"
    #: It is made of plain values, so a stored plan can hold it.
    portable = True

    @property
    def space(self) -> str:  # type: ignore[override]
        """Where it finds its operand."""
        return HOST if self.inwards else self.memory.space

    @property
    def returns(self) -> str:  # type: ignore[override]
        """Where it leaves its result."""
        return self.memory.space if self.inwards else HOST

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """See :class:`~accord.backends.protocol.HostKernel`."""
        (value,) = inputs
        if value is None:
            return [None]
        return [DeviceArray.of(self.memory, np.asarray(value)) if self.inwards else value.numpy()]


# nodes on their own


def _model_of(view: NodeView) -> bytes:
    """The node as an ONNX file."""
    import onnx
    import onnx_ir as ir

    node = view.node
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain, name=node.name or "", overload=node.overload)
    proto.input.extend("" if v is None else f"i{i}" for i, v in enumerate(node.inputs))
    proto.output.extend(f"o{j}" if o.name else "" for j, o in enumerate(node.outputs))
    proto.attribute.extend(ir.serde.serialize_attribute(a) for a in node.attributes.values())
    model = onnx.ModelProto(ir_version=onnx.IR_VERSION)
    model.graph.name = "late"
    model.graph.node.append(proto)
    model.graph.input.extend(onnx.ValueInfoProto(name=n) for n in proto.input if n)
    model.opset_import.extend(onnx.helper.make_opsetid(d, v) for d, v in view.analyzer.opsets.items())
    function = view.function()
    if function is not None:
        model.functions.append(ir.serde.serialize_function(function))
    return bytes(model.SerializeToString())


def _view_of(model: bytes, facts: Sequence[TensorFact | None], precision: str) -> NodeView:
    """The node of :func:`_model_of` with these facts of its inputs.

    Raises:
        ModelTypeError: they contradict the operator.
    """
    import onnx
    import onnx_ir as ir

    from accord.backends.view import NodeView
    from accord.ir.facts import FactTable
    from accord.ir.infer import Analyzer

    made = ir.serde.deserialize_model(onnx.ModelProto.FromString(model))
    (node,) = made.graph
    analyzer = Analyzer(FactTable(), made.opset_imports, functions=made.functions)
    analyzer.precision = precision or analyzer.precision
    for v, fact in zip(node.inputs, facts, strict=True):
        if v is not None and fact is not None:
            analyzer.facts[v] = fact
    analyzer.infer(node)
    return NodeView(node, analyzer)


# choosing late


def late_or(view: NodeView, refused: Reason, make: Maker) -> Kernel | Reason:
    """A late kernel where a run may tell what a kernel lacks now; else ``refused``."""
    if not _is_open(view):
        return refused
    late = late_node(view, make)
    return late if isinstance(late, LateNode) and not late.refuses(view) else refused


def late_node(view: NodeView, make: Maker) -> LateNode | Reason:
    """A late kernel for a node whose inputs and outputs are tensors of numbers."""
    from accord.ir.facts import TensorFact

    facts = [f for f, v in zip(view.inputs, view.node.inputs, strict=True) if v is not None]
    facts += [f for f, o in zip(view.outputs, view.node.outputs, strict=True) if o.name]
    if not all(isinstance(f, TensorFact) and f.dtype is not None and f.dtype.name != "STRING" for f in facts):
        return Reason("it does not only work on tensors of numbers")
    if any(a.type.name in ("GRAPH", "GRAPHS") or a.is_ref() for a in view.node.attributes.values()):
        return Reason("it has a graph of its own")
    name = view.node.op_type if view.node.domain != FUSED_DOMAIN else view.node.name
    function = view.function()
    rounds = view.analyzer.precision != "float32" and any(n.op_type in _ROUNDED for n in (view.node, *(function or ())))
    precision = view.analyzer.precision if rounds else ""
    return make(f"late {name}", _model_of(view), tuple(sorted(_deciding(view))), precision)


def _is_open(view: NodeView) -> bool:
    """Whether anything about the node is only known when it runs."""
    shapes = [view.tensor(i).shape for i in range(len(view.node.inputs)) if view.has(i)]
    return (
        any(s is None or not D.is_known(s) for s in shapes)
        or any(view.output(j).shape is None for j in range(len(view.node.outputs)))
        or any(not view.tensor(i).is_const for i in _deciding(view))
    )


def _deciding(view: NodeView) -> dict[int, int]:
    """Inputs whose content decides, and samples of it."""
    if view.node.domain == "":
        return {i: v for i, v in DECIDING.get(view.node.op_type, {}).items() if view.has(i)}
    function = view.function()
    if function is None or view.node.domain != FUSED_DOMAIN:
        return {}
    place = {formal: i for i, formal in enumerate(function.inputs)}
    found: dict[int, int] = {}
    for node in function:
        for i, sample in DECIDING.get(node.op_type, {}).items() if node.domain == "" else ():
            v = node.inputs[i] if i < len(node.inputs) else None
            if v in place and view.has(place[v]):
                found.setdefault(place[v], sample)
    return found


def _samples(view: NodeView, *, alike: bool) -> list[TensorFact | None]:
    """Facts of a node's inputs with sizes and contents as they may well be.

    Args:
        view: The node.
        alike: A size that is not known is what another input of the same rank has there, if that is known.
    """
    from accord.ir.facts import TensorFact, constant_fact

    deciding = _deciding(view)
    rank = max((len(s) for i in range(len(view.node.inputs)) if (s := view.tensor(i).shape) is not None), default=2)
    declared = _declared_sizes(view)
    samples: list[TensorFact | None] = []
    for i in range(len(view.node.inputs)):
        fact = view.tensor(i)
        if not view.has(i):
            samples.append(None)
            continue
        assert fact.dtype is not None
        if fact.is_const:
            samples.append(fact)
        elif i in deciding:
            shape = (1,) if fact.shape is None else tuple(d if isinstance(d, int) else 1 for d in fact.shape)
            samples.append(constant_fact(np.full(shape, deciding[i], fact.dtype.numpy())))
        else:
            sizes = declared.get(i, (_SAMPLE,) * rank)
            if fact.shape is not None:
                given: Iterable[int] = map(_sample, fact.shape)
                if i in declared and len(sizes) == len(fact.shape):
                    given = sizes
                if alike:
                    given = (_known(view, a, len(fact.shape), s) for a, s in enumerate(given))
                sizes = tuple(d if isinstance(d, int) else s for d, s in zip(fact.shape, given, strict=True))
            samples.append(TensorFact(fact.dtype, sizes))
    return samples


def _known(view: NodeView, axis: int, rank: int, otherwise: int) -> int:
    shapes = [view.tensor(i).shape for i in range(len(view.node.inputs)) if view.has(i)]
    found = [s[axis] for s in shapes if s is not None and len(s) == rank]
    return next((d for d in found if isinstance(d, int)), otherwise)


def _declared_sizes(view: NodeView) -> dict[int, tuple[int, ...]]:
    """Sizes of inputs that agree with what a user declared of them, for each input whose rank is declared."""
    from accord.contract.registry import user_contract
    from accord.contract.shapes import bind
    from accord.contract.sizes import evaluate_size, names_in

    contract = user_contract(view.node.domain, view.node.op_type, view.analyzer.opsets.get(view.node.domain, 1))
    if contract is None:
        return {}
    known = {n: d for n, d in bind(contract.semantic, view).sizes.items() if isinstance(d, int)}
    found = {}
    for i, p in enumerate(contract.semantic.inputs):
        if p.sizes is None or "..." in p.sizes:
            continue
        texts = [str(size) for size in p.sizes]
        env = {n: _SAMPLE for t in texts for n in names_in(t)} | known
        values = [evaluate_size(t, env) for t in texts]
        found[i] = tuple(max(1, v) if isinstance(v, int) else _SAMPLE for v in values)
    return found


def _sample(d: DimLike) -> int:
    return d if isinstance(d, int) else max(1, D.evaluate(d, dict.fromkeys(D.symbols_of(d), _SAMPLE)))
