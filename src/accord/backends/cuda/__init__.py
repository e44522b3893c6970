"""The CUDA backend: kernels generated as Triton for NVIDIA GPUs. Nothing of CUDA is imported before it is asked for."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from accord.backends.discovery import import_modules
from accord.backends.memory import HOST
from accord.backends.protocol import (
    Arrangement,
    Array,
    Backend,
    ChosenLaunch,
    Concurrency,
    FixedLaunch,
    HostKernel,
    Kernel,
    Launch,
    Launches,
    NativeKernel,
    Phase,
    Program,
    Turns,
)
from accord.errors import BackendError, CompileError
from accord.ir.reason import FUSED_DOMAIN, Reason

if TYPE_CHECKING:
    from accord.backends.cuda.driver import Device
    from accord.backends.cuda.memory import DeviceMemory
    from accord.backends.cuda.tuner import Tuner
    from accord.backends.view import NodeView
    from accord.ir.dims import DimLike

__all__ = ["SIZES", "CudaBackend", "backend"]


#: Why the host computes what is no data.
SIZES = Reason("it computes sizes, which stays on the host")


class CudaBackend(Backend):
    """One GPU.

    Args:
        ordinal: Its number.

    Attributes:
        ordinal: Its number.
    """

    device = "cuda"
    stores_halves = True
    hosts = ("cpu", "reference")
    #: Of the order of today's GPUs, in a graph; it decides what is worth a stream, nothing else.
    concurrency = Concurrency(streams=4, event=1e-6, least=2.5e-6, flops=2e14, bandwidth=3e12, link=4e10)

    def __init__(self, ordinal: int = 0) -> None:
        self.ordinal = ordinal
        self._others: dict[int, CudaBackend] = {}
        self.name = "cuda" if ordinal == 0 else f"cuda:{ordinal}"

    @functools.cached_property
    def memory(self) -> DeviceMemory:  # type: ignore[override]
        """The GPU's."""
        from accord.backends.cuda.memory import DeviceMemory

        return DeviceMemory(self.ordinal)

    @property
    def gpu(self) -> Device:
        """The device.

        Raises:
            BackendError: there is none.
        """
        from accord.backends.cuda.driver import device

        return device(self.ordinal)

    def numbered(self, number: int) -> CudaBackend:
        """The backend of another GPU."""
        return self if number == self.ordinal else self._others.setdefault(number, CudaBackend(number))

    def memory_at(self, address: int) -> DeviceMemory:
        """That of the GPU that has the address."""
        from accord.backends.cuda.driver import ordinal_of

        return self.numbered(ordinal_of(address)).memory

    def active(self) -> AbstractContextManager[None]:
        """Properties of a GPU that kernels are chosen by are this one's."""
        from accord.backends.cuda.driver import chosen

        return chosen(self.ordinal)

    @property
    def identity(self) -> str:
        """The kind of GPU, and the compiler."""
        from accord.backends.cuda.code import compiler_version

        gpu = self.gpu
        return f"{gpu.name} sm_{gpu.architecture} {gpu.processors} {gpu.shared} triton {compiler_version()}"

    def lacking(self) -> str | None:
        """The driver's library, or a package."""
        return _lacking()

    def require(self) -> None:
        """Look for the packages and the device."""
        missing = _missing_package()
        if missing is not None:
            raise BackendError(f"device 'cuda' needs the package {missing}", remedy="pip install 'accord[cuda]'")
        self.gpu  # noqa: B018  looking for it is what it does

    def select(self, view: NodeView) -> Kernel | Reason:
        """A kernel, generated or declared, a view, or why not; one that is chosen later where a run knows more."""
        from accord.backends.cuda.late import late_maker
        from accord.backends.late import late_or

        host = _for_the_host(view)
        if host is not None:
            return host
        kernel = self.known(view)
        return late_or(view, kernel, late_maker(self.ordinal)) if isinstance(kernel, Reason) else kernel

    def select_late(self, view: NodeView) -> Kernel | Reason:
        """A kernel that is chosen when it runs."""
        from accord.backends.cuda.late import late_maker
        from accord.backends.late import late_node

        kernel = _for_the_host(view) or self.known(view)
        return kernel if isinstance(kernel, Reason) else late_node(view, late_maker(self.ordinal))

    def known(self, view: NodeView) -> Kernel | Reason:
        """As :meth:`select`, by what is known now."""
        from accord.backends.cuda.counted import CountedKernel
        from accord.backends.cuda.families import declared
        from accord.backends.cuda.families.roots import ROOTS
        from accord.backends.cuda.families.table import TABLE
        from accord.backends.cuda.loop_phases import lower_loops
        from accord.backends.fused import select_fused
        from accord.backends.loops.program import lowered

        _register()
        kernel = select_fused(view, ROOTS) if view.node.domain == FUSED_DOMAIN else declared.select_declared(view)
        if kernel is None:
            selector = TABLE.selector(view.node.domain, view.node.op_type)
            if selector is None:
                return Reason(f"no kernel is generated for {view.node.op_type}")
            kernel = selector(view)
        if isinstance(kernel, CountedKernel):
            return kernel.of(self.ordinal)
        if not isinstance(kernel, NativeKernel):
            far = not isinstance(kernel, HostKernel) or kernel.space == self.space or kernel.untouched
            return kernel if far else Reason("it runs in Python")
        try:
            return lowered(kernel, lower_loops)
        except CompileError as error:
            return Reason(str(error.message))

    def arrange(self, view: NodeView) -> Arrangement:
        """What the operator's family says; row-major where it says nothing."""
        from accord.backends.cuda.families import declared
        from accord.backends.cuda.families.roots import ROOTS
        from accord.backends.cuda.families.table import TABLE
        from accord.backends.fused import arrange_fused

        _register()
        if _for_the_host(view) is not None:
            return Arrangement(strided=True)
        if view.node.domain == FUSED_DOMAIN:
            return arrange_fused(view, ROOTS)
        own = declared.arrange_declared(view)
        if own is not None:
            return own
        arranger = TABLE.arranger(view.node.domain, view.node.op_type)
        return Arrangement() if arranger is None else arranger(view)

    def fuses(self, root: NodeView) -> Reason | None:
        """What has a kernel that applies an epilogue."""
        from accord.backends.cuda.families.roots import ROOTS

        _register()
        refusal = _for_the_host(root) or ROOTS.refusal(root)
        if refusal is not None:
            return refusal
        kernel = ROOTS.select(root)
        return kernel if isinstance(kernel, Reason) else None

    def joins(self, nodes: Sequence[NodeView]) -> Reason | None:
        """What makes one loop program."""
        from accord.backends.loops.groups import can_join

        _register()
        for n in nodes:
            host = _for_the_host(n)
            if host is not None:
                return host
        return can_join(nodes)

    def transfer(self, nbytes: DimLike, source: str, target: str) -> NativeKernel:
        """A copy between the host's memory and the GPU's."""
        from accord.backends.cuda.parts import TransferCode

        phase = Phase(TransferCode(inwards=source == HOST), (0, 1, 2), (nbytes,), _one_task)
        return NativeKernel(f"copy {source} to {target}", (phase,), (0,), staged=True)

    def tune(self, launches: Sequence[ChosenLaunch], *, wait: bool) -> None:
        """See :class:`~accord.backends.protocol.Backend`."""
        from accord.backends.cuda.choices import BoundLaunch

        with self.active():
            choices = {launch.choice.key: launch.choice for launch in launches if isinstance(launch, BoundLaunch)}
            if choices:
                self._tuner.tune(list(choices.values()), wait=wait)

    @functools.cached_property
    def _tuner(self) -> Tuner:
        from accord.backends.cuda.tuner import Tuner

        def found() -> None:
            self.generation += 1

        return Tuner(self.gpu, found)

    def program(self, launches: Launches, operands: Sequence[Array], threads: int = 1, turns: Turns = ()) -> Program:
        """Launches on streams; what is compiled nowhere yet is compiled now, several at a time."""
        from accord.backends.cuda.program import CudaProgram

        del threads
        self._compile(launches)
        return CudaProgram(self.gpu, launches, operands, turns)

    def prepare(self, kernels: Sequence[NativeKernel]) -> None:
        """Compile what has known sizes, several at a time."""
        phases = [p for k in kernels for p in k.phases if _is_fixed(p)]
        self._compile([(p, p.launch([d for d in p.dims if isinstance(d, int)])) for p in phases])

    def _compile(self, launches: Sequence[tuple[Phase, Launch]]) -> None:
        from accord.backends.cuda.code import CudaLaunch, KernelText, Variant, find_binary

        target = self.gpu.architecture
        wanted: dict[Variant, None] = {}
        for phase, launch in launches:
            if isinstance(phase.code, KernelText) and isinstance(launch, CudaLaunch) and launch.tasks:
                wanted[Variant.of(launch.text or phase.code, launch, aligned=True)] = None
        missing = [v for v in wanted if find_binary(v, target) is None]
        if missing:
            from accord.backends.cuda.compilers import compile_all

            compile_all(missing, target)

    def compiling(self) -> AbstractContextManager[object]:
        """Processes that compile."""
        if os.environ.get("TRITON_INTERPRET") == "1":
            return nullcontext()
        from accord.backends.cuda.compilers import compilers

        return compilers()


def _is_fixed(phase: Phase) -> bool:
    return isinstance(phase.launch, FixedLaunch) or all(isinstance(d, int) for d in phase.dims)


def _one_task(sizes: Sequence[int]) -> Launch:
    return Launch(tuple(sizes), int(sizes[0] > 0))


def _for_the_host(view: NodeView) -> Reason | None:
    """Why a node is better computed by the host: its results are sizes, which the host needs and knows at once."""
    for j, o in enumerate(view.node.outputs):
        if o.name and view.output(j).elements() is not None:
            return SIZES
    return None


@functools.cache
def _missing_package() -> str | None:
    """What has to be installed with pip; looking for it imports nothing."""
    for package, module in (("cuda-bindings", "cuda.bindings"), ("triton", "triton")):
        if not _is_installed(module):
            return package
    return None


def _is_installed(module: str) -> bool:
    import importlib.machinery
    import importlib.util

    package, _, part = module.partition(".")
    try:
        found = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return False
    if found is None or not part:
        return found is not None
    return importlib.machinery.PathFinder.find_spec(module, found.submodule_search_locations) is not None


@functools.cache
def _lacking() -> str | None:
    import ctypes

    missing = _missing_package()
    if missing is not None:
        return f"the package {missing}"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "the NVIDIA driver"
    return None


def _register() -> None:
    import_modules("accord.backends.loops.members", "accord.backends.cuda.families")


backend = CudaBackend()
