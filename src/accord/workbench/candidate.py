"""What is timed: one way to compute an operator, ready to be called on a set of inputs."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from accord.contract.contract import Contract
from accord.errors import AccordError, ContractError
from accord.kernels.bound import CallKernel, WriteKernel, bind_kernel, named_sizes, workspace_bytes
from accord.workbench.arrays import Array, aligned
from accord.workbench.author import DIRECT, with_kernels
from accord.workbench.peers import peer

__all__ = ["Call", "Candidate", "open_candidate"]


class Call(ABC):
    """A candidate on one set of inputs; called again and again."""

    @abstractmethod
    def __call__(self) -> Any:
        """Compute; what is timed."""

    @abstractmethod
    def outputs(self, result: Any) -> list[Any]:
        """The outputs of the last call, as they are."""

    def poison(self) -> None:  # noqa: B027  most calls make their outputs anew
        """Spoil the memory that the next call has to write."""


class Candidate(ABC):
    """One way to compute an operator.

    Attributes:
        facts: What is known of it, for people and for the roofline.
    """

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}

    @abstractmethod
    def call(self, inputs: Sequence[Array | None]) -> Call:
        """The candidate on ``inputs``, whose content may change between calls."""


def open_candidate(spec: Mapping[str, Any], contract: Contract | None, folder: Path) -> Candidate:
    """Make a candidate.

    Args:
        spec: ``what``: "kernel", "model", "builtin", "reference", "profile" or "peer"; ``name``: of the kernel or peer;
            ``model``: the file of a peer or built-in; ``attributes``, ``types``, ``threads``.
        contract: Of the operator; not needed for peers.
        folder: Where the models are.

    Raises:
        AccordError: it cannot be made; the message says why.
    """
    what = spec["what"]
    if what == "peer":
        return _Peer(spec, folder)
    if contract is None:
        raise AccordError("a kernel needs the contract of its operator")
    if what == "kernel" and contract.kernel(spec["name"]).kind in DIRECT:
        return _Direct(spec, contract, folder)
    return _Runtime(spec, contract, folder)


# kernels as they are


class _Direct(Candidate):
    def __init__(self, spec: Mapping[str, Any], contract: Contract, folder: Path) -> None:
        from accord.workbench.arrays import read_arrays

        super().__init__()
        self.kernel = bind_kernel(contract, contract.kernel(spec["name"]), spec["types"])
        self.attributes = dict(spec["attributes"])
        self.expected = read_arrays(folder / "expected")

    def call(self, inputs: Sequence[Array | None]) -> Call:
        if isinstance(self.kernel, CallKernel):
            return _Returning(self.kernel, inputs, self.attributes)
        if not isinstance(self.kernel, WriteKernel):
            raise ContractError("this kernel cannot be called by itself")
        outputs = [None if x is None else aligned(x.shape, x.dtype) for x in self.expected]
        return _Writing(self.kernel, inputs, outputs, self.attributes)


class _Returning(Call):
    def __init__(self, kernel: CallKernel, inputs: Sequence[Array | None], attributes: Mapping[str, Any]) -> None:
        self._kernel, self._inputs, self._attributes = kernel, inputs, attributes

    def __call__(self) -> Any:
        return self._kernel(self._inputs, self._attributes)

    def outputs(self, result: Any) -> list[Any]:
        return list(result)


class _Writing(Call):
    def __init__(
        self,
        kernel: WriteKernel,
        inputs: Sequence[Array | None],
        outputs: Sequence[Array | None],
        attributes: Mapping[str, Any],
    ) -> None:
        sizes = named_sizes(kernel.contract, inputs, attributes, outputs)
        nbytes = workspace_bytes(kernel.contract, kernel.kernel, sizes)
        self._memory = (inputs, outputs, aligned((nbytes,), np.uint8) if nbytes else None)
        self._outputs = outputs
        self._call = kernel.prepared(inputs, outputs, attributes, self._memory[2])
        for x in outputs:
            if x is not None:
                x.reshape(-1).view(np.uint8)[:] = 0  # pages exist once they are written to

    def __call__(self) -> Any:
        self._call()

    def outputs(self, result: Any) -> list[Any]:
        del result
        return [x for x in self._outputs if x is not None]

    def poison(self) -> None:
        for x in self._outputs:
            if x is not None:
                x.reshape(-1).view(np.uint8)[:] = 0xFF


# through the runtime


class _Runtime(Candidate):
    def __init__(self, spec: Mapping[str, Any], contract: Contract, folder: Path) -> None:
        from accord.runtime.model import Model
        from accord.runtime.options import Options

        super().__init__()
        what = spec["what"]
        source = (folder / spec.get("model", "own.onnx")).read_bytes()
        options = Options(threads=spec["threads"], reference=what == "reference", choices=None)
        if what == "profile":  # with whichever kernel the runtime chooses
            self.model = Model(source, options)
            self.facts["profile"] = []
            return
        kernels = [contract.kernel(spec["name"])] if what in ("kernel", "model") else []
        with with_kernels(contract, kernels):
            self.model = Model(source, options)
        steps = self.model.plan.steps
        slow = sorted({s.placement.op for s in steps if s.placement.fallback})
        if slow and what != "reference" and not (kernels and kernels[0].kind == "python"):
            raise AccordError(f"there is no CPU kernel for {', '.join(slow)}")
        self.facts["steps"] = [s.kernel.name for s in steps if s.kernel is not None]

    def call(self, inputs: Sequence[Array | None]) -> Call:
        from accord.profile.steps import records
        from accord.runtime.observed import observe
        from accord.runtime.watch import Collector, watched

        feed = {f"x{i}": x for i, x in enumerate(inputs) if x is not None}
        if self.facts.get("profile") == []:
            from accord.profile.profile import profile

            steps = profile(self.model, feed, runs=20).steps
            self.facts["profile"] = [{"op": s.op, "kernel": s.kernel, "median": s.median} for s in steps]
        if "operations" not in self.facts:
            executor, values = self.model.executor_for(feed)
            collector = Collector(observe)
            with watched(collector):
                executor.run(values)
            found = records(executor, collector.runs, None).values()
            self.facts["operations"] = sum(r.operations or 0 for r in found) or None
            self.facts["dtype"] = next((r.dtype for r in found if r.dtype is not None), None)
        return _Feeding(self.model, feed)


class _Feeding(Call):
    def __init__(self, run: Callable[[Mapping[str, Any]], Sequence[Any]], feed: Mapping[str, Array]) -> None:
        self._run, self._feed = run, feed

    def __call__(self) -> Any:
        return self._run(self._feed)

    def outputs(self, result: Any) -> list[Any]:
        return list(result)


# peers


class _Peer(Candidate):
    def __init__(self, spec: Mapping[str, Any], folder: Path) -> None:
        super().__init__()
        if spec["name"] == "torch":
            self.run = _torch(spec)
        else:
            self.run = peer(spec["name"], folder / spec["model"], spec["threads"])

    def call(self, inputs: Sequence[Array | None]) -> Call:
        return _Feeding(self.run, {f"x{i}": x for i, x in enumerate(inputs) if x is not None})


def _same(name: str) -> Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]:
    return lambda torch, x, a: getattr(torch, name)(*x)


def _activation(name: str) -> Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]:
    return lambda torch, x, a: getattr(torch.nn.functional, name)(*x)


#: ONNX operators that PyTorch computes with one call: inputs in order and attributes to its result.
_TORCH: dict[str, Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]] = {
    **{n: _same(n.lower()) for n in "Abs Add Div Erf Exp Log MatMul Mul Neg Sigmoid Sqrt Sub Tanh Where".split()},
    **{n: _activation(n.lower()) for n in ("Relu", "Mish", "Softplus")},
    "HardSwish": _activation("hardswish"),
    "Gelu": lambda torch, x, a: torch.nn.functional.gelu(x[0], approximate=a.get("approximate", "none")),
    "Softmax": lambda torch, x, a: torch.softmax(x[0], a.get("axis", -1)),
    "LogSoftmax": lambda torch, x, a: torch.log_softmax(x[0], a.get("axis", -1)),
    "LayerNormalization": lambda torch, x, a: torch.nn.functional.layer_norm(
        x[0], x[0].shape[a.get("axis", -1) :], *x[1:], *([None] * (3 - len(x))), a.get("epsilon", 1e-5)
    ),
    "RMSNormalization": lambda torch, x, a: torch.nn.functional.rms_norm(
        x[0], x[0].shape[a.get("axis", -1) :], x[1], a.get("epsilon", 1e-5)
    ),
    "Gemm": lambda torch, x, a: torch.nn.functional.linear(x[0], x[1], *x[2:]),
    "Conv": lambda torch, x, a: torch.nn.functional.conv2d(
        *x,
        *([None] * (3 - len(x))),
        tuple(a.get("strides") or (1, 1)),
        tuple((a.get("pads") or (0, 0))[:2]),
        tuple(a.get("dilations") or (1, 1)),
        a.get("group", 1),
    ),
}


def _torch(spec: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Sequence[Any]]:
    """PyTorch's operator on the memory of the inputs."""
    function = _TORCH.get(spec["op"])
    if function is None:
        raise AccordError(f"no function of PyTorch's is known to be {spec['op']}")
    torch = importlib.import_module("torch")
    torch.set_num_threads(spec["threads"])
    attributes = spec["attributes"]

    def run(feed: Mapping[str, Any]) -> Sequence[Any]:
        with torch.inference_mode():
            return [function(torch, [torch.from_numpy(x) for x in feed.values()], attributes).numpy()]

    return run
