"""What the process knows that runs a user's file but never a kernel: contracts, inputs, right results.

It draws the inputs, computes what is right, writes the models that other runtimes get, and judges the results of
the processes that are timed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from accord.contract.choose import refusal
from accord.contract.code import CudaCode, LibraryCode, PackedCode, TritonCode
from accord.contract.contract import Contract, KernelDeclaration, Tolerance
from accord.contract.registry import TOLERANCE, contract_for
from accord.contract.shapes import Bound
from accord.errors import AccordError, ContractError
from accord.kernels.bound import named_sizes
from accord.workbench.arguments import Arguments
from accord.workbench.arrays import Array, read_arrays, write_arrays

__all__ = ["DIRECT", "Author", "code_digest", "one_node", "with_kernels"]

#: Kinds of kernels that are called as they are; the others run as part of a graph.
DIRECT = ("python", "library", "tvm_ffi")
_FLOATS = ("float16", "float32", "bfloat16")


class Author:
    """An operator with arguments.

    Args:
        contract: Of the operator.
        arguments: Of the call.
        folder: Where other processes find what is written.
    """

    def __init__(self, contract: Contract, arguments: Arguments, folder: Path) -> None:
        self.contract = contract
        self.arguments = arguments
        self.folder = folder

    def prepare(self) -> dict[str, Any]:
        """Write inputs, expected outputs and models; what there is to be measured."""
        c, a = self.contract, self.arguments
        write_arrays(self.folder / "inputs", a.inputs)
        own = one_node(c, a)
        (self.folder / "own.onnx").write_bytes(own)
        expected = self._results(a.inputs)[0]
        write_arrays(self.folder / "expected", expected)
        return {
            "inputs": [None if x is None else list(x.shape) for x in a.inputs],
            "read": sum(x.nbytes for x in a.inputs if x is not None),
            "written": sum(x.nbytes for x in expected),
            "attributes": a.attributes,
            "types": a.types,
            "sizes": a.sizes,
            "kernels": self._kernels(),
            "builtin": self._builtin(expected),
            "portable": self._portable(),
        }

    def _kernels(self) -> list[dict[str, Any]]:
        """Each declared kernel, and why it is not measured here."""
        c, a = self.contract, self.arguments
        bound = Bound()
        bound.types.update(a.types)
        bound.sizes.update(named_sizes(c, a.inputs, a.attributes))
        found = []
        for k in c.kernels:
            why = refusal(c, k, bound)
            text = f"for {k.device}" if k.device != "cpu" else None if why is None else str(why)
            found.append({"name": k.name, "kind": k.kind, "refused": text})
        return found

    def _builtin(self, expected: Sequence[Array]) -> str | None:
        """The model with an operator of ONNX's or Microsoft's that has the same name and computes the same."""
        c, a = self.contract, self.arguments
        if c.semantic.domain in ("", "com.microsoft"):
            return "own.onnx"
        for domain, version in (("", 24), ("com.microsoft", 1)):
            try:
                other = contract_for(domain, c.semantic.name, version)
            except AccordError:
                continue
            shared = {n: v for n, v in a.attributes.items() if n in other.semantic.attributes}
            if len(other.semantic.inputs) < len(a.inputs) or len(other.semantic.outputs) < len(expected):
                continue
            text = one_node(other, dataclasses.replace(a, attributes=shared), len(expected))
            try:
                judged = self._judged(_by_runtime(text, a.inputs, reference=True), [expected])
            except AccordError:
                continue
            if judged is None:
                (self.folder / "builtin.onnx").write_bytes(text)
                return "builtin.onnx"
        return None

    def _portable(self) -> str | None:
        """The model that other runtimes can load: of ONNX operators."""
        c = self.contract
        if c.semantic.domain in ("", "com.microsoft"):
            return "own.onnx"
        compositions = [k for k in c.kernels if k.kind == "composition"]
        if not compositions:
            return None
        from accord.runtime.options import Options
        from accord.runtime.pipeline import compile_model
        from accord.runtime.save import save_stage

        target = self.folder / "portable.onnx"

        def keep(stage: str, model: Any, analyzer: Any) -> None:
            if stage == "declutter":
                save_stage(model, analyzer, target)

        with with_kernels(c, compositions[:1]):
            compile_model((self.folder / "own.onnx").read_bytes(), Options(level=1, threads=1), on_stage=keep)
        import onnx

        left = {n.domain for n in onnx.load(target, load_external_data=False).graph.node}
        return None if c.semantic.domain in left else target.name

    # right results

    def _results(self, inputs: Sequence[Array | None]) -> list[list[Array]]:
        """What is right: computed with the inputs as they are, and once more in float64 where the reference can."""
        s = self.contract.semantic
        if s.reference is None:
            return [_by_runtime((self.folder / "own.onnx").read_bytes(), inputs, reference=True)]
        try:
            found = [_called(s.reference, [None if x is None else x.copy() for x in inputs], self.arguments.attributes)]
        except Exception as error:
            raise ContractError(
                f"the reference fails: {type(error).__name__}: {error}",
                op=s.qualified_name,
                remedy="Give other sizes or attributes, or correct the reference or its constraints.",
            ) from error
        if any(x is not None and str(x.dtype) in _FLOATS for x in inputs):
            wide = [x.astype(np.float64) if x is not None and str(x.dtype) in _FLOATS else x for x in inputs]
            try:
                found.append(_called(s.reference, wide, self.arguments.attributes))
            except Exception:  # noqa: BLE001  a reference may insist on its dtypes
                return found
        return found

    def judge(self, name: str) -> str | None:
        """Judge inputs and outputs that a process wrote; None if they are right.

        Args:
            name: Of the file in the folder: inputs, then outputs.
        """
        arrays = read_arrays(self.folder / name)
        count = len(self.arguments.inputs)
        outputs = [x for x in arrays[count:] if x is not None]
        return self._judged(outputs, self._results(arrays[:count]))

    def _judged(self, outputs: Sequence[Array], right: Sequence[Sequence[Array]]) -> str | None:
        why = None
        for expected in right:
            why = difference(expected, outputs, self.contract.semantic.tolerance or TOLERANCE)
            if why is None:
                return None
        return why


def difference(expected: Sequence[Array], actual: Sequence[Array], tolerance: Mapping[str, Tolerance]) -> str | None:
    """How outputs differ from what is expected, by the tolerance of their dtype; None if they agree."""
    if len(actual) < len(expected):
        return f"{len(actual)} outputs where {len(expected)} are expected"
    for i, (want, have) in enumerate(zip(expected, actual, strict=False)):
        if want.shape != have.shape:
            return f"output {i} has shape {list(have.shape)} where {list(want.shape)} is expected"
        a, b = np.asarray(want, np.float64), np.asarray(have, np.float64)
        limit = tolerance.get(str(have.dtype), Tolerance(0.0, 0.0))
        with np.errstate(invalid="ignore", over="ignore"):
            near = np.abs(a - b) <= limit.atol + limit.rtol * np.abs(a)
        wrong = ~(near | (a == b) | (np.isnan(a) & np.isnan(b)))
        if wrong.any():
            at = tuple(int(k) for k in np.argwhere(wrong)[0])
            return f"output {i}{list(at)} is {b[at]:.6g} where {a[at]:.6g} is expected ({wrong.mean():.1%} are wrong)"
    return None


def _called(reference: Any, inputs: Sequence[Array | None], attributes: Mapping[str, Any]) -> list[Array]:
    result = reference(*inputs, **attributes)
    return [np.asarray(r) for r in (result if isinstance(result, (tuple, list)) else (result,))]


def _by_runtime(model: bytes, inputs: Sequence[Array | None], *, reference: bool) -> list[Array]:
    from accord.runtime.model import Model
    from accord.runtime.options import Options

    loaded = Model(model, Options(threads=1, reference=reference))
    given = {i.name: x for i, x in zip(loaded.inputs, (x for x in inputs if x is not None), strict=True)}
    return [np.asarray(x) for x in loaded(given)]


def one_node(contract: Contract, a: Arguments, outputs: int | None = None) -> bytes:
    """A model of one call: its inputs are the arguments that are there, called x0, x1 ..."""
    import onnx
    from onnx import helper

    s = contract.semantic
    names = ["" if x is None else f"x{i}" for i, x in enumerate(a.inputs)]
    while names and not names[-1]:
        names.pop()
    count = outputs if outputs is not None else s.min_outputs
    results = [f"y{i}" for i in range(count)]
    given = {n: v for n, v in a.attributes.items() if not isinstance(v, (list, tuple)) or len(v)}
    node = helper.make_node(s.name, names, results, name="op", domain=s.domain, **given)
    values = [
        helper.make_tensor_value_info(f"x{i}", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for i, x in enumerate(a.inputs)
        if x is not None
    ]
    graph = helper.make_graph([node], "op", values, [onnx.ValueInfoProto(name=r) for r in results])
    imports = [helper.make_opsetid("", s.since_version if s.domain == "" else 21)]
    if s.domain:
        imports.append(helper.make_opsetid(s.domain, s.since_version))
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return bytes(model.SerializeToString())


@contextlib.contextmanager
def with_kernels(contract: Contract, kernels: Sequence[KernelDeclaration]) -> Iterator[Contract]:
    """For the time of a block, the operator has these kernels only."""
    from accord.contract.registry import register

    now = dataclasses.replace(contract, kernels=tuple(kernels))
    own = contract.semantic.domain not in ("", "com.microsoft")
    if own:
        register(now, replacing=contract)
    try:
        yield now
    finally:
        if own:
            register(contract, replacing=now)


def code_digest(contract: Contract, kernel: KernelDeclaration) -> str:
    """A hash of a kernel's code: of the text of its function, or of the library that holds it."""
    digest = hashlib.sha256(f"{contract.semantic.qualified_name} {kernel.name} {kernel.kind}".encode())
    for code in kernel.code if isinstance(kernel.code, tuple) else (kernel.code,):
        digest.update(_text(code))
    return digest.hexdigest()[:16]


def _text(code: Any) -> bytes:
    """What code consists of; nothing that depends on where it lies."""
    if isinstance(code, LibraryCode):
        return code.symbol.encode() + _content(code.path)
    if isinstance(code, PackedCode):
        return code.function.encode() + _content(code.module)
    if isinstance(code, CudaCode):
        return repr((code.source, code.entry, code.parameters, code.options)).encode()
    function = code.kernel if isinstance(code, TritonCode) else code
    try:
        return inspect.getsource(getattr(function, "fn", function)).encode()
    except (OSError, TypeError):  # typed in, or made at run time
        return getattr(getattr(function, "__code__", None), "co_code", b"")


def _content(path: str) -> bytes:
    return Path(path).read_bytes() if Path(path).is_file() else b""
