"""Kernels on operands that lie in memory in any way: order of axes, gaps, repetition.

:func:`run_node` runs the kernel of one node on arrays that lie as a test says, task by task in any order;
:func:`run_strided` lets a random generator say it. :func:`strided_model` gets a model there with Transpose and
Slice, and :func:`agree` compares the model on generated kernels with the reference.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from hypothesis import strategies as st

import accord.ops.catalog  # noqa: F401  registers shape rules
from accord.backends.cpu import CpuBackend
from accord.backends.cpu.jit import KERNEL_TYPE
from accord.backends.cpu.program import address_of, words_of
from accord.backends.epilogue import Epilogue, Extra
from accord.backends.protocol import Kernel, NativeKernel
from accord.backends.root import RootView
from accord.backends.view import NodeView
from accord.expr.lang import Expr
from accord.ir import dims as D
from accord.ir.facts import FactTable
from accord.ir.infer import Analyzer
from accord.ir.reason import Reason
from accord.ir.strides import Access
from accord.plan.plan import all_steps
from accord.runtime.model import Model
from accord.runtime.options import Options
from builders import OPSET, model, node

__all__ = [
    "access_of",
    "agree",
    "empty_like",
    "laid_out",
    "layouts",
    "run_node",
    "run_strided",
    "strided_model",
    "values",
    "view_of",
]

Array = Any
Select = Callable[[NodeView], "Kernel | Reason"]
THREADS = 3


def access_of(array: Array, shape: Sequence[int] | None = None) -> Access:
    """How an array lies; broadcast to ``shape`` where that is given."""
    view = array if shape is None else np.broadcast_to(array, shape)
    return Access(tuple(s // array.itemsize for s in view.strides))


def laid_out(array: Array, order: Sequence[int] | None = None, gaps: Sequence[int] = ()) -> Array:
    """A copy whose axes lie in memory as ``order`` says; memory axis ``i`` is followed by ``gaps[i]`` free elements.

    Around the elements and in the gaps are values that show in any result: NaN, or the greatest integer.
    """
    order = tuple(range(array.ndim)) if order is None else tuple(order)
    gaps = (*gaps, *(0,) * (array.ndim - len(gaps)))
    sizes = [array.shape[a] + g for a, g in zip(order, gaps, strict=True)]
    lead = 5
    memory = np.empty(int(np.prod(sizes)) + 2 * lead, array.dtype)
    memory[:] = poison(array.dtype)
    body = memory[lead : len(memory) - lead].reshape(sizes)
    body = body[(*(slice(array.shape[a]) for a in order), ...)]
    view = body.transpose(np.argsort(order))
    view[...] = array
    return view


def poison(dtype: np.dtype[Any]) -> Any:
    """What no kernel may touch."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return True
    return np.iinfo(dtype).max if dtype.kind in "iu" else np.nan


def empty_like(shape: Sequence[int], dtype: Any, order: Sequence[int] | None = None, gaps: Sequence[int] = ()) -> Array:
    """An output to be written, with memory around it as :func:`laid_out` has it."""
    return laid_out(np.full(shape, poison(np.dtype(dtype)), dtype), order, gaps)


def view_of(proto: onnx.ModelProto, arrays: Mapping[str, Array] | None = None) -> NodeView:
    """The view of the only node of ``proto``; inputs and outputs lie as ``arrays`` of their names do."""
    model = ir.serde.deserialize_model(proto)
    (node,) = model.graph
    analyzer = Analyzer(FactTable(), model.opset_imports)
    analyzer.infer(node)
    values = [v for v in (*node.inputs, *node.outputs) if v is not None and v.name]
    return NodeView(node, analyzer, {v: access_of(a) for v in values if (a := (arrays or {}).get(v.name)) is not None})


def check_untouched(array: Array) -> None:
    """Fail if something was written beside the elements of an array that :func:`empty_like` made."""
    memory = array
    while memory.base is not None:
        memory = memory.base
    memory = memory.reshape(-1)
    beside = np.ones(memory.shape, bool)
    start = (array.ctypes.data - memory.ctypes.data) // array.itemsize
    own = np.lib.stride_tricks.as_strided(
        beside[start:], array.shape, tuple(s // array.itemsize * beside.itemsize for s in array.strides)
    )
    own[...] = False
    np.testing.assert_array_equal(memory[beside], poison(array.dtype), "written beside the output")


def values(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """The same values for the same shape, so that an example that failed can be repeated."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(shape)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    return rng.standard_normal(shape).astype(dtype)


@st.composite
def layouts(draw, rank: int):
    """An order of axes and gaps after each: mostly channels-last."""
    last = (0, *range(2, rank), 1) if rank > 1 else (0,)
    order = draw(st.sampled_from([last, last, last, tuple(range(rank))]) | st.permutations(range(rank)).map(tuple))
    gaps = draw(st.just(()) | st.tuples(*[st.integers(0, 2)] * rank))
    return order, gaps


def run_node(
    proto: onnx.ModelProto,
    feeds: Mapping[str, Array],
    outputs: Sequence[Array],
    *,
    select: Select | None = None,
    epilogue: tuple[Expr, Sequence[tuple[str, Array]]] | None = None,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    choice: str | None = None,
    together: bool = False,
) -> NativeKernel:
    """Run the only node of ``proto`` on its generated kernel.

    Args:
        proto: A model of one node.
        feeds: Inputs by name; their strides are those that the kernel is told.
        outputs: An array for each output that has a name, made by :func:`empty_like`; its strides are the output's.
        select: Makes the kernel; default: the backend's table.
        epilogue: Expression and extras (element type, array that broadcasts to the output).
        sizes: Values of the symbols that the model's shapes name.
        seed: Of the order in which tasks run.
        choice: Which of its alternatives the kernel shall take.
        together: Tasks of a phase run on several threads at once.

    Returns:
        The kernel.
    """
    named = [o for o in proto.graph.node[0].output if o]
    written = dict(zip(named, outputs, strict=True))
    view = view_of(proto, {**feeds, **written})
    node = view.node
    extras: list[Array] = []
    if epilogue is not None:
        view = RootView(node, view.analyzer, view.layouts)
        target = outputs[0]
        extras = [a for _, a in epilogue[1]]
        described = tuple(Extra(t, access_of(a, target.shape)) for t, a in epilogue[1])
        view.epilogue = Epilogue(epilogue[0], described)
        view.stored = access_of(target)
    view.choice = choice
    kernel = (CpuBackend().select if select is None else select)(view)
    assert isinstance(kernel, NativeKernel), kernel
    arrays: list[Array] = []
    for i in kernel.reads:
        value = node.inputs[i]
        assert value is not None
        if i in kernel.constants:
            constant = kernel.constants[i]
            arrays.append(constant() if callable(constant) else constant)
        elif value.const_value is not None:
            arrays.append(np.ascontiguousarray(value.const_value.numpy()))
        else:
            arrays.append(feeds[value.name])
    arrays += extras
    arrays += outputs
    evaluated = [D.evaluate(d, sizes or {}) for d in kernel.dims]
    scratch = np.full(evaluated[-1] * THREADS + 64, 0xA5, np.uint8)  # nothing may count on zeros
    arrays.append(scratch[-scratch.ctypes.data % 64 :])
    rng = np.random.default_rng(seed)
    for phase, launch in zip(kernel.phases, kernel.launches(evaluated), strict=True):
        function = KERNEL_TYPE(address_of(phase))
        params = words_of(launch)
        pointers = np.array([arrays[i].ctypes.data for i in phase.operands], np.int64)
        cuts = [0, launch.tasks]
        if 1 < launch.tasks < 64 and rng.random() < 0.5:
            cuts = list(range(launch.tasks + 1))
        elif launch.tasks > 1:
            cuts = sorted({0, launch.tasks, *rng.integers(0, launch.tasks, 4).tolist()})
        pieces = list(itertools.pairwise(cuts))
        rng.shuffle(pieces)

        def run(thread: int, pieces=pieces, function=function, params=params, pointers=pointers) -> None:
            for first, last in pieces[thread::THREADS]:
                function(params.ctypes.data, pointers.ctypes.data, int(first), int(last), thread)

        with ThreadPoolExecutor(THREADS if together else 1) as threads:
            list(threads.map(run, range(THREADS)))
        if params[-1]:
            raise IndexError("the kernel refused its data")
    for array in outputs:
        check_untouched(array)
    return kernel


def run_strided(
    proto: onnx.ModelProto, feeds: Mapping[str, Array], seed: int, *, repeat: Sequence[str] = ()
) -> list[Array]:
    """Outputs of the one node of ``proto``, all of whose inputs and outputs lie in a random way of their own.

    Those in ``repeat`` have stride 0 along their first axis. The last axis of an output has stride 1.
    """
    rng = np.random.default_rng(seed)

    def scattered(array: Array) -> Array:
        order, gaps = rng.permutation(array.ndim), rng.integers(0, 3, array.ndim)
        if rng.random() < 0.5:
            return laid_out(array, order, gaps)
        return laid_out(array[..., None], (*order, array.ndim), (*gaps, 1))[..., 0]

    given = {n: np.broadcast_to(scattered(a[0]), a.shape) if n in repeat else scattered(a) for n, a in feeds.items()}
    sizes: dict[str, int] = {}
    for declared in proto.graph.input:
        dims = declared.type.tensor_type.shape.dim
        sizes |= {d.dim_param: n for d, n in zip(dims, feeds[declared.name].shape, strict=True) if d.dim_param}
    view = view_of(proto, given)
    outputs = []
    for i, value in enumerate(view.node.outputs):
        if not value.name:
            continue
        fact = view.output(i)
        assert fact.shape is not None and fact.dtype is not None
        shape = [D.evaluate(d, sizes) for d in fact.shape]
        order = [*rng.permutation(len(shape) - 1), len(shape) - 1] if shape else []
        outputs.append(empty_like(shape, fact.dtype.numpy(), order, rng.integers(0, 3, len(shape))))
    run_node(proto, given, outputs, sizes=sizes, seed=seed)
    return outputs


class _Inputs:
    """Inputs of a model and the nodes that cut them out of larger, transposed ones."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.nodes: list[onnx.NodeProto] = []
        self.declared: dict[str, tuple[Any, Sequence[Any]]] = {}
        self.feeds: dict[str, Array] = {}
        self.constants: dict[str, Array] = {}

    def add(self, name: str, value: Array, symbolic: bool) -> None:
        """A value that is a view of an input ``name.raw``; some axes swapped, some with elements between."""
        rank = value.ndim
        perm = list(self.rng.permutation(rank))
        steps = [int(self.rng.choice([1, 1, 2, -1])) if n > 1 else 1 for n in value.shape]
        grown = [1 + (n - 1) * abs(s) if n else 0 for n, s in zip(value.shape, steps, strict=True)]
        whole = np.zeros(grown, value.dtype)
        whole[tuple(slice(None, None, s) if s > 0 else slice(None, None, -1) for s in steps)] = value
        raw = np.array(whole.transpose(perm), order="C")
        self.feeds[f"{name}.raw"] = raw
        self.declared[f"{name}.raw"] = (raw.dtype, [f"{name}{i}" for i in range(rank)] if symbolic else raw.shape)
        if not rank:
            self.nodes.append(node("Identity", [f"{name}.raw"], [name]))
            return
        self.nodes.append(node("Transpose", [f"{name}.raw"], [f"{name}.t"], perm=np.argsort(perm).tolist()))
        ends = np.array([-(2**60) if s < 0 else 2**60 for s in steps], np.int64)
        starts = np.array([2**60 if s < 0 else 0 for s in steps], np.int64)
        self.constants |= {
            f"{name}.s": starts,
            f"{name}.e": ends,
            f"{name}.a": np.arange(rank),
            f"{name}.p": np.array(steps),
        }
        self.nodes.append(node("Slice", [f"{name}.t", *(f"{name}.{k}" for k in "seap")], [name]))


def strided_model(
    op: onnx.NodeProto,
    values: Mapping[str, Array],
    *,
    seed: int = 0,
    symbolic: bool = False,
    plain: Sequence[str] = (),
    domains: Mapping[str, int] | None = None,
    join: Mapping[str, tuple[int, Array]] | None = None,
    opset: int = OPSET,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of ``op`` on inputs with strides, and what to feed it.

    Args:
        op: The node; its inputs are names in ``values``.
        values: What the node's inputs are.
        seed: Of the strides.
        symbolic: Sizes of the model's inputs have no values in the model.
        plain: Inputs that are constants of the model.
        domains: Versions of further domains.
        join: Output → axis and array: what is returned is the output and the array, joined along the axis. So the
            node writes its output with gaps.
        opset: Of the model.
    """
    made = _Inputs(np.random.default_rng(seed))
    for name, value in values.items():
        if name in plain:
            made.constants[name] = np.asarray(value)
        else:
            made.add(name, np.asarray(value), symbolic)
    nodes, outputs = [*made.nodes, op], []
    for o in op.output:
        if join is not None and o in join:
            axis, made.constants[f"{o}.more"] = join[o]
            nodes.append(node("Concat", [o, f"{o}.more"], [f"{o}.joined"], axis=axis))
            outputs.append(f"{o}.joined")
        elif o:
            outputs.append(o)
    return model(nodes, made.declared, outputs, made.constants, domains=domains, opset=opset), made.feeds


def agree(
    proto: onnx.ModelProto,
    feeds: Mapping[str, Array],
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
    level: int = 0,
    device: str = "cpu",
) -> Model:
    """Run on the generated kernels alone and on the reference alone; the outputs must agree.

    On another device than the CPU, data must stay there.
    """
    fast = Model(proto, Options(level=level, strict=True, device=device))
    if device != "cpu":
        places = [s.placement for s in all_steps(fast.compiled.plan)]
        assert not [p.op for p in places if p.backend not in (device, "plan", "runtime") and p.kernel is not None]
    slow = Model(proto, Options(level=0, reference=True))
    for a, b in zip(fast(feeds), slow(feeds), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        wide = np.complex128 if a.dtype.kind == "c" else np.float64
        if a.dtype.kind in "biu":
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a.astype(wide), b.astype(wide), rtol=rtol, atol=atol)
    return fast
