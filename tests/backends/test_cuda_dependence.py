"""Kernels that are started before those in front of them are done."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed (190 MB; pip install 'accord[cuda]')")

from disassembly import disassembled

import accord
from accord.backends.cuda import code, program
from accord.backends.cuda.code import Binary, CudaLaunch, KernelText, Variant, binary_of
from accord.backends.cuda.finish import FinishText
from accord.backends.cuda.linear_attention import LinearAttentionKernel
from accord.backends.cuda.lines import NEXT, WAIT
from accord.backends.cuda.program import CudaProgram, TransferCode
from accord.backends.cuda.suppression import SuppressionText
from accord.backends.matrix_state import LinearAttention
from accord.backends.protocol import Launch, Phase, Turn
from accord.errors import BackendError
from builders import model, node
from dependence import waits
from emulated_gpu import install

H = np.float16


@pytest.fixture
def kernels(monkeypatch):
    """What is generated for a model with all families on a GPU of architecture 90, and how it is started."""
    gpu = install(monkeypatch.setattr)
    gpu.architecture, gpu.processors, gpu.shared = 90, 132, 227 << 10
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Softmax", ["a"], ["s"]),
        node("MatMul", ["long", "wide"], ["b"]),
        node("Attention", ["q", "k", "v"], ["z"]),
        node("Attention", ["few", "k", "v"], ["joined"]),
        node("Conv", ["image", "taps"], ["c"], pads=[1, 1, 1, 1]),
        node("Conv", ["rgb", "patch"], ["d"], strides=[2, 2]),
        node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2]),
        node("Resize", ["p", "", "scales"], ["r"], mode="linear"),
        node("ScatterElements", ["s", "places", "added"], ["scattered"], reduction="add"),
        node("LSTM", ["steps", "lw", "lr"], ["y"], hidden_size=32),
    ]
    heads = {n: (H, [1, 12, 2048, 64]) for n in ("q", "k", "v")} | {"few": (H, [1, 12, 1, 64])}
    images = {"image": (H, [1, 64, 28, 28]), "rgb": (H, [1, 3, 224, 224])}
    rows = {"x": (H, [16, 4096]), "long": (H, [4096, 768]), "steps": (H, [5, 2, 16])}
    shapes = rows | {"places": (np.int64, [16, 64]), "added": (H, [16, 64]), **images, **heads}
    zeros = {"w": (4096, 64), "wide": (768, 3072), "taps": (64, 64, 3, 3), "patch": (64, 3, 7, 7)}
    zeros |= {"lw": (1, 128, 16), "lr": (1, 128, 32)}
    constants = {n: np.zeros(s, H) for n, s in zeros.items()} | {"scales": np.array([1, 1, 1.5, 1.5], np.float32)}
    outputs = ["b", "z", "joined", "d", "r", "scattered", "y"]
    m = accord.load(model(nodes, shapes, outputs, constants), device="cuda")
    found = {}
    for step in m.plan.steps:
        for phase in getattr(step.kernel, "phases", ()):
            if isinstance(phase.code, KernelText):
                launch = phase.launch([])
                found[launch.text or phase.code] = launch
    return found


def others():
    """Texts of families that only a run starts, or with more than the model has."""
    for center, bounded in itertools.product((False, True), repeat=2):
        yield SuppressionText(center, bounded)
    for given in itertools.product((False, True), repeat=4):
        yield LinearAttentionKernel(LinearAttention("f16", "f32", *given, 0.125))


def test_every_kernel_waits_before_it_touches_memory(kernels):
    """All kinds of kernels are here, so that nobody forgets it for a new one."""
    texts = [*kernels, *others()]
    kinds = {k for k in KernelText.__subclasses__() if k.__module__.startswith("accord.backends.cuda.")}
    written = {k for k in kinds if k.__name__ not in ("DeclaredCode", "WrittenText")} - {FinishText}
    assert {type(k) for k in texts} == written
    for kernel in texts:
        assert waits(kernel.text(), kernel.symbol), kernel


BEFORE = f"    {WAIT}\n"
PLACE = "    at = x + tl.arange(0, 8)\n"
LOAD = "    a = tl.load(at)\n"


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (PLACE + BEFORE + LOAD, ""),
        (PLACE + f"    if n:\n    {BEFORE}    {LOAD}    else:\n    {BEFORE}    pass\n", ""),
        (PLACE + LOAD + BEFORE, "touches memory"),
        (PLACE + "    helper(at)\n" + BEFORE, "touches memory"),
        (PLACE + BEFORE + BEFORE + LOAD, "twice"),
        (PLACE + f"    if n:\n    {BEFORE}    {LOAD}    else:\n        pass\n", "one way"),
        (PLACE + f"    for i in range(n):\n    {BEFORE}    {LOAD}", "in a loop"),
        (PLACE + f"    {NEXT}\n" + BEFORE + LOAD, "lets the next one start"),
        ("    tl.warp_specialize([(helper, (x,)), (other, (x,))], [4], [24])\n", "touches memory"),
        ("    tl.warp_specialize([(other, (x,)), (idle, (x,))], [4], [24])\n", "groups of warps"),
        ("    tl.warp_specialize([(other, (x,)), (other, (x,))], [4], [24])\n", ""),
    ],
)
def test_faults_of_a_text_are_found(lines, fault):
    helpers = f"def helper(x):\n{LOAD}\ndef other(at):\n{BEFORE}{LOAD}\ndef idle(x):\n    a = 0\n"
    text = f"{helpers}def kernel(x, n):\n{lines}"
    if not fault:
        assert waits(text, "kernel")
        return
    with pytest.raises(AssertionError, match=fault):
        waits(text, "kernel")


READS = re.compile(r"\b(LDG|LDGSTS|STG|RED|ATOM|UTMA)")


def test_machine_code_waits_before_it_reads(kernels, monkeypatch, tmp_path):
    """From architecture 90 on, unless it is switched off."""
    assert code.EARLY == "stores"
    for kernel, launch in {type(k): (k, launch) for k, launch in kernels.items()}.values():
        made = {}
        for early in ("off", "stores"):
            monkeypatch.setattr(code, "EARLY", early)
            made[early] = binary_of(Variant.of(kernel, launch, aligned=True), 90)
            lines = disassembled(made[early].cubin, tmp_path)
            waits = [n for n, line in enumerate(lines) if "ACQBULK" in line]
            touches = [n for n, line in enumerate(lines) if READS.search(line)]
            assert made[early].waits == bool(waits) == (early == "stores"), kernel
            own = made[early].scratch_bytes  # descriptors are written to memory of the launch's own before
            assert not waits or own or waits[0] < touches[0], kernel
            lets = early == "stores" and NEXT in kernel.text()
            assert any("PREEXIT" in line for line in lines) == lets, kernel
        assert made["stores"].spills == made["off"].spills, kernel


def test_older_architectures_do_not_wait(kernels):
    kernel, launch = next((k, launch) for k, launch in kernels.items() if type(k).__name__ == "LoopKernel")
    variant = Variant.of(kernel, launch, aligned=True)
    assert variant.early
    assert not binary_of(variant, 80).waits


class Text(KernelText):
    """A kernel of which nothing but the name matters."""

    pointers = ("f32",)

    def __init__(self, symbol):
        self._symbol = symbol

    @property
    def symbol(self):
        return self._symbol

    @property
    def foreign(self):
        return self._symbol.startswith("user")

    def text(self):
        return ""


class Noting:
    """A device that notes what is put on its streams, and which kernels may start early."""

    architecture, lost, gate = 90, None, None

    def __init__(self):
        self.started, self.idle, self._handles = [], [], itertools.count(100)

    def launch(self, function, grid, parameters, stream, *, early=False):
        self.started.append((function, early))

    def function(self, cubin, name, block, shared, cluster):
        return name

    def _new(self, **options):
        return next(self._handles)

    event = stream = allocate = _new

    def to_device(self, *given):
        self.started.append(("copy", False))

    def pinned(self, nbytes):
        self._words = np.zeros(nbytes, np.uint8)
        return self._words.ctypes.data

    def __getattr__(self, name):
        return lambda *given, **options: None


def started(monkeypatch, names, turns=()):
    """Which kernels may start early; names that begin with "w" wait by themselves, and "user" does so too."""
    made = {n: Binary(b"", n, 32, 0, 0, 0, 1, 0, waits=n[0] in "wu") for n in names}
    monkeypatch.setattr(program, "binary_of", lambda v, _: made[v.kernel.symbol])
    launches = []
    for name in names:
        if name == "copy":
            launches.append((Phase(TransferCode(inwards=True), (0, 1, 2), ()), Launch((8,), 1)))
        else:
            launches.append((Phase(Text(name), (0,), ()), CudaLaunch((), 1)))
    memory = np.zeros(64, np.uint8)
    base = memory.ctypes.data
    table = base + np.arange(3 * len(names), dtype=np.int64) % 7 * 8
    ends = np.cumsum([0, *(len(p.operands) for p, _ in launches)])
    gpu = Noting()
    run = CudaProgram(gpu, launches, [table[a:b] for a, b in itertools.pairwise(ends)], turns)
    for _ in range(2):  # the first time users' kernels are waited for
        gpu.started.clear()
        assert run.run() == -1
    assert [n for n, _ in gpu.started] == names
    return [early for _, early in gpu.started]


def test_only_what_waits_by_itself_starts_early_and_only_behind_a_kernel(monkeypatch):
    names = ["w0", "w1", "other", "w2", "copy", "w3", "w4", "user", "w5"]
    early = started(monkeypatch, names)
    assert [n for n, e in zip(names, early, strict=True) if e] == ["w1", "w2", "w4", "w5"]


def test_what_is_behind_an_event_starts_when_all_is_done(monkeypatch):
    """w1 is recorded, and w4 waits for it; w5 waits for w4 and follows w3, which has an event behind it."""
    names = ["w0", "w1", "w2", "w3", "w4", "w5", "w6"]
    turns = [Turn(), Turn(), Turn(), Turn(), Turn(1, (1,)), Turn(0, (4,)), Turn()]
    early = started(monkeypatch, names, turns)
    assert [n for n, e in zip(names, early, strict=True) if e] == ["w1", "w3", "w6"]


def test_machine_code_of_each_way_is_kept_apart(monkeypatch):
    keys = set()
    for early in ("off", "stores"):
        monkeypatch.setattr(code, "EARLY", early)
        variants = [Variant.of(Text(name), CudaLaunch((), 1), aligned=True) for name in ("w", "user")]
        keys |= {(v.kernel.symbol, code._key(v, 90)) for v in variants}
        assert [v.early for v in variants] == [early == "stores", False]
        assert Variant(variants[0].kernel, *variants[0].settings) == variants[0]
    assert len(keys) == 3


def test_another_way_is_refused(monkeypatch):
    monkeypatch.setattr(code, "EARLY", "often")
    with pytest.raises(BackendError, match="ACCORD_CUDA_EARLY"):
        Variant.of(Text("w"), CudaLaunch((), 1), aligned=True)
