"""The CUDA backend: kernels generated as Triton for NVIDIA GPUs. Nothing of CUDA is imported before it is asked for."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from accord.backends.memory import HOST
from accord.backends.protocol import (
    Arrangement,
    Array,
    Backend,
    FixedLaunch,
    HostKernel,
    Kernel,
    Launch,
    NativeKernel,
    Phase,
    Program,
)
from accord.errors import CompileError
from accord.ir.reason import FUSED_DOMAIN, Reason

if TYPE_CHECKING:
    from accord.backends.cuda.driver import Device, DeviceMemory
    from accord.backends.view import NodeView
    from accord.ir.dims import DimLike

__all__ = ["SIZES", "CudaBackend", "backend", "backend_of"]


#: Why the host computes what is no data.
SIZES = Reason("it computes sizes, which stays on the host")


class CudaBackend(Backend):
    """One GPU.

    Args:
        ordinal: Its number.
    """

    device = "cuda"
    hosts = ("cpu", "reference")

    def __init__(self, ordinal: int = 0) -> None:
        self._ordinal = ordinal
        self.name = "cuda" if ordinal == 0 else f"cuda:{ordinal}"

    @functools.cached_property
    def memory(self) -> DeviceMemory:  # type: ignore[override]
        """The GPU's."""
        from accord.backends.cuda.driver import DeviceMemory

        return DeviceMemory(self._ordinal)

    @property
    def gpu(self) -> Device:
        """The device.

        Raises:
            BackendError: there is none.
        """
        from accord.backends.cuda.driver import device

        return device(self._ordinal)

    def lacking(self) -> str | None:
        """The driver's library, or a package."""
        return _lacking()

    def require(self) -> None:
        """Look for the device."""
        self.gpu  # noqa: B018  looking for it is what it does

    def select(self, view: NodeView) -> Kernel | Reason:
        """A generated kernel, a view, or why not; one that is chosen later where a run knows more."""
        from accord.backends.cuda.late import late_maker
        from accord.backends.late import late_or

        host = _for_the_host(view)
        if host is not None:
            return host
        kernel = self.known(view)
        return late_or(view, kernel, late_maker(self._ordinal)) if isinstance(kernel, Reason) else kernel

    def select_late(self, view: NodeView) -> Kernel | Reason:
        """A kernel that is chosen when it runs."""
        from accord.backends.cuda.late import late_maker
        from accord.backends.late import late_node

        kernel = _for_the_host(view) or self.known(view)
        return kernel if isinstance(kernel, Reason) else late_node(view, late_maker(self._ordinal))

    def known(self, view: NodeView) -> Kernel | Reason:
        """As :meth:`select`, by what is known now."""
        from accord.backends.cuda.counted import CountedKernel
        from accord.backends.cuda.families.roots import ROOTS
        from accord.backends.cuda.families.table import TABLE
        from accord.backends.cuda.loops import lower_loops
        from accord.backends.fused import select_fused
        from accord.backends.loops.program import lowered

        _register()
        if view.node.domain == FUSED_DOMAIN:
            kernel = select_fused(view, ROOTS)
        else:
            selector = TABLE.selector(view.node.domain, view.node.op_type)
            if selector is None:
                return Reason(f"no kernel is generated for {view.node.op_type}")
            kernel = selector(view)
        if isinstance(kernel, CountedKernel):
            return kernel.of(self._ordinal)
        if not isinstance(kernel, NativeKernel):
            far = not isinstance(kernel, HostKernel) or kernel.space == self.space or kernel.untouched
            return kernel if far else Reason("it runs in Python")
        try:
            return lowered(kernel, lower_loops)
        except CompileError as error:
            return Reason(str(error.message))

    def arrange(self, view: NodeView) -> Arrangement:
        """What the operator's family says; row-major where it says nothing."""
        from accord.backends.cuda.families.roots import ROOTS
        from accord.backends.cuda.families.table import TABLE
        from accord.backends.fused import arrange_fused

        _register()
        if _for_the_host(view) is not None:
            return Arrangement(strided=True)
        if view.node.domain == FUSED_DOMAIN:
            return arrange_fused(view, ROOTS)
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
        from accord.backends.cuda.program import TransferCode

        phase = Phase(TransferCode(inwards=source == HOST), (0, 1), (nbytes,), _one_task)
        return NativeKernel(f"copy {source} to {target}", (phase,), (0,))

    def program(self, launches: Sequence[tuple[Phase, Launch]], operands: Sequence[Array], threads: int = 1) -> Program:
        """Launches on a stream of its own."""
        from accord.backends.cuda.program import CudaProgram

        del threads
        return CudaProgram(self.gpu, launches, operands)

    def prepare(self, kernels: Sequence[NativeKernel]) -> None:
        """Compile what has known sizes, several at a time."""
        from accord.backends.cuda.code import CudaLaunch, KernelText, Variant, binary_of
        from accord.cores import on_all_cores

        target = self.gpu.architecture
        wanted: dict[Variant, None] = {}
        for kernel in kernels:
            for phase in kernel.phases:
                if not isinstance(phase.code, KernelText):
                    continue
                launch = phase.launch([d for d in phase.dims if isinstance(d, int)]) if _is_fixed(phase) else None
                if isinstance(launch, CudaLaunch) and launch.tasks:
                    wanted[Variant.of(phase.code, launch, aligned=True)] = None
        variants = list(wanted)

        def compile_one(k: int) -> None:
            binary_of(variants[k], target)

        on_all_cores(compile_one, len(variants))


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
def _lacking() -> str | None:
    import ctypes
    import importlib.util

    for package, module in (("cuda-bindings", "cuda"), ("triton", "triton")):
        if importlib.util.find_spec(module) is None:
            return f"the package {package}"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "the NVIDIA driver"
    return None


@functools.cache
def _register() -> None:
    """Importing a family registers its operators."""
    import pkgutil

    from accord.backends.cuda import families
    from accord.backends.loops import members

    for package in (members, families):
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")


backend = CudaBackend()


@functools.cache
def backend_of(ordinal: int) -> CudaBackend:
    """The backend of a GPU."""
    return backend if ordinal == 0 else CudaBackend(ordinal)
