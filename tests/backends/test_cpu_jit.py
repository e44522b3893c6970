"""From LLVM text to machine code in memory: the machine's description, linking, support functions, other processors."""

from __future__ import annotations

import ctypes
import math
import pickle
import random
import struct
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from accord.backends.cpu import build as building
from accord.backends.cpu import jit
from accord.backends.cpu import machine as described
from accord.backends.cpu.compiler import Compiler, initialise
from accord.backends.cpu.link import ALIGNMENT, link, undefined
from accord.backends.cpu.machine import _X86_FLAGS, describe, machine
from accord.backends.cpu.support import FUNCTIONS, support_text
from accord.backends.cpu.walker import WalkerSource
from accord.errors import CompileError
from cpu_harness import Number

X86 = pytest.mark.skipif(machine().arch != "x86_64", reason="machine code can be linked for x86-64 only")
CPUINFO = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
BASE = describe("x86_64", CPUINFO, "sse2")


def mapped(name: str, text: str, target=None) -> int:
    """Address of a function of a module that is compiled for ``target``."""
    symbol = f"test {name} {hash(text)} {target and target.cpu}"
    if symbol not in jit._STATE.entries:
        jit._map({symbol: building.build(text, target or machine())})
    return jit._STATE.entries[symbol][name]


# the machine


def test_the_description_agrees_with_llvm():
    if machine().arch != "x86_64":
        pytest.skip("the table is of x86-64")
    llvm = initialise()
    found = describe("x86_64", CPUINFO, "native")
    host = llvm.get_host_cpu_features()
    known = [f for f in _X86_FLAGS if f in host]
    assert len(known) > 30
    assert {f for f in known if host[f]} == found.has & set(known)
    name = llvm.get_host_cpu_name()
    assert found.cpu == name or found.cpu.startswith("x86-64")


@pytest.mark.parametrize(
    ("level", "bits", "cpu"), [("native", 512, "sapphirerapids"), ("avx2", 256, "x86-64-v3"), ("sse2", 128, "x86-64")]
)
def test_levels_leave_features_out(level: str, bits: int, cpu: str):
    flags = "sse sse2 pni ssse3 sse4_1 sse4_2 popcnt cx16 lahf_lm abm movbe bmi1 bmi2 avx avx2 fma f16c avx512f"
    flags += " avx512bw avx512cd avx512dq avx512vl avx512_vnni avx512_bf16 amx_tile amx_int8 amx_bf16"
    text = f"vendor_id : GenuineIntel\ncpu family : 6\nmodel : 143\nflags\t\t: {flags}\n\nprocessor : 1\nflags : none"
    m = describe("x86_64", text, level)
    assert (m.vector_bits, m.cpu) == (bits, cpu)
    assert ("amx-tile" in m.has) == (level == "native")
    assert ("fma" in m.has) == (level != "sse2")
    assert not m.has & m.lacks
    assert all(f"-{f}" in m.features for f in m.lacks)
    assert m.width(32) == bits // 32


def test_a_processor_that_nobody_knows():
    assert describe("x86_64", "", "native").cpu == "x86-64"
    assert describe("x86_64", "vendor_id : X\ncpu family : 99\nflags : avx2", "native").vector_bits == 256
    arm = describe("aarch64", "Features\t: fp asimd asimddp asimdhp bf16", "native")
    assert (arm.vector_bits, "dotprod" in arm.has, "i8mm" in arm.lacks) == (128, True, True)
    with pytest.raises(CompileError, match="ACCORD_CPU"):
        describe("x86_64", "", "avx1024")


def test_threads_by_default_are_physical_cores(monkeypatch):
    monkeypatch.setattr(described, "_allowed", lambda: set(range(8)))
    monkeypatch.setattr(described, "_siblings", lambda k: f"{k % 4},{k % 4 + 4}")
    for quota, cores, at_once in ((99, 4, 8), (3, 3, 3), (1, 1, 1)):
        monkeypatch.setattr(described, "_quota", lambda q=quota: q)
        assert described.usable_cores() == cores
        assert described._at_hand("native").cores == at_once


# linking


SWITCH = """
@table = private constant [4 x i64] [i64 5, i64 7, i64 11, i64 13]
@wide = private constant <8 x float> <float 1., float 2., float 3., float 4., float 5., float 6., float 7., float 8.>,
  align 64
define i64 @pick(i64 %x) nounwind noinline {
  switch i64 %x, label %other [ i64 0, label %a i64 1, label %b i64 2, label %c i64 3, label %d i64 4, label %e ]
a:
  %r0 = call i64 @twice(i64 3)
  ret i64 %r0
b:
  %r1 = call i64 @element(i64 2)
  ret i64 %r1
c:
  %v = load <8 x float>, ptr @wide, align 64
  %l = extractelement <8 x float> %v, i64 6
  %r2 = fptosi float %l to i64
  ret i64 %r2
d:
  %r3 = sdiv i64 %x, 2
  ret i64 %r3
e:
  %q = load volatile i64, ptr @table
  ret i64 %q
other:
  ret i64 -1
}
define internal i64 @twice(i64 %x) nounwind noinline {
  %r = shl i64 %x, 1
  ret i64 %r
}
define internal i64 @element(i64 %k) nounwind noinline section ".text.elsewhere" {
  %p = getelementptr i64, ptr @table, i64 %k
  %r = load volatile i64, ptr %p
  ret i64 %r
}
"""


@X86
def test_relocations_to_functions_constants_and_jump_tables():
    code = Compiler(machine()).object_code(SWITCH)
    kinds = {
        struct.unpack_from("<QQq", code, k)[1] & 0xFFFFFFFF
        for at, size in _relocation_sections(code)
        for k in range(at, at + size, 24)
    }
    assert kinds >= {2, 4}, "the test is meant to need both kinds"
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(mapped("pick", SWITCH))
    assert [function(k) for k in range(6)] == [6, 11, 7, 1, 5, -1]


def _relocation_sections(code: bytes) -> list[tuple[int, int]]:
    start, size, count = struct.unpack_from("<Q", code, 40)[0], *struct.unpack_from("<HH", code, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, start + k * size) for k in range(count)]
    return [(s[4], s[5]) for s in sections if s[1] == 4]


@X86
def test_code_runs_wherever_it_is_mapped():
    blob = building.build(SWITCH, machine())
    filler = building.build("define void @pad() nounwind { ret void }", machine())
    jit._map({"a filler": filler, "moved 1": blob, "another filler": filler, "moved 2": blob})
    addresses = [jit._STATE.entries[f"moved {k}"]["pick"] for k in (1, 2)]
    assert all((a - blob.entries["pick"]) % ALIGNMENT == 0 for a in addresses)
    for a in addresses:
        assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(a)(1) == 11


@X86
def test_only_global_functions_are_entries():
    assert set(building.build(SWITCH, machine()).entries) == {"pick"}
    assert set(building.build(WalkerSource().module("w"), machine()).entries) == {"w", "w_worker", "w_stop"}


@X86
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("declare i64 @strlen(ptr)\ndefine i64 @f(ptr %p) { %n = call i64 @strlen(ptr %p) ret i64 %n }", "strlen"),
        (
            "@n = internal global i64 1\ndefine void @f() nounwind { store volatile i64 2, ptr @n ret void }",
            "variables",
        ),
        (
            "@t = internal constant [1 x ptr] [ptr @f]\ndefine ptr @f(i64 %i) nounwind {\n"
            "%p = getelementptr ptr, ptr @t, i64 %i\n%r = load volatile ptr, ptr %p ret ptr %r }",
            "variables",
        ),
        (
            "@c = internal constant i64 1, align 128\ndefine i64 @f() { %r = load volatile i64, ptr @c ret i64 %r }",
            "128",
        ),
        ("define void @f() { nonsense }", "refuses"),
        ("define i64 @f() { ret void }", "refuses"),
    ],
)
def test_what_cannot_be_linked_is_refused(text: str, words: str):
    with pytest.raises(CompileError, match=words):
        building.build(text, machine())


@X86
def test_objects_that_are_none_are_refused():
    for data in (b"", b"\x7fELF\x01\x01" + bytes(100), b"MZ" + bytes(100)):
        with pytest.raises(CompileError, match="ELF"):
            link([data])
    code = Compiler(machine()).object_code(SWITCH)
    with pytest.raises(CompileError, match="twice"):
        link([code, code])


def test_no_memory_is_writable_and_executable():
    jit.entries(WalkerSource())
    address = jit.entries(WalkerSource())[WalkerSource.symbol]
    spans = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    mine = [s for s in spans if int(s[0].split("-")[0], 16) <= address < int(s[0].split("-")[1], 16)]
    assert [s[1] for s in mine] == ["r-xp"]


# many at once


@X86
@pytest.mark.parametrize("threads", [1, 4])
def test_many_modules_at_once(threads: int):
    codes = [Number(k) for k in range(40)]
    done: dict[int, bytes] = {}
    blobs = building.build_all(
        [lambda c=c: c.module(c.symbol) for c in codes], machine(), lambda k, b: done.setdefault(k, b.code), threads
    )
    assert [list(b.entries) for b in blobs] == [[c.symbol] for c in codes]
    assert done == {k: b.code for k, b in enumerate(blobs)}
    assert blobs[7] == building.build(codes[7].module(codes[7].symbol), machine())


@X86
@pytest.mark.parametrize("threads", [1, 3])
def test_a_module_that_fails_is_reported_and_ends_the_rest(threads: int):
    codes = [Number(k, broken=k == 5) for k in range(12)]
    with pytest.raises(CompileError, match="refuses"):
        building.build_all([lambda c=c: c.module(c.symbol) for c in codes], machine(), lambda k, b: None, threads)

    def fail() -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        building.build_all([fail] * 5, machine(), lambda k, b: None, threads)


@X86
def test_a_code_is_compiled_once_and_travels_without_its_address():
    a, b = Number(1001), Number(1001)
    assert a.run() == 1001
    assert a.address == b.address
    copy = pickle.loads(pickle.dumps(a))
    assert "_address" not in copy.__dict__, "an address means nothing to another process"
    assert copy.address == a.address


# functions that LLVM calls


def _double(bits: int) -> float:
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


def _doubles(rng: random.Random) -> float:
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice(
            [0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, -5e-324, 1.7976931348623157e308, 1.0, -1.5]
        )
    exponent = rng.choice([rng.randrange(0, 0x7FF), rng.randrange(0x3F0, 0x410), rng.randrange(0, 60)])
    mantissa = rng.choice([rng.getrandbits(52), rng.getrandbits(52) & ~0xFFFFFFFFFF, rng.getrandbits(3), 2**52 - 1])
    return _double(rng.getrandbits(1) << 63 | exponent << 52 | mantissa)


def _fused(x: float, y: float, z: float) -> float:
    """The exact result, rounded once."""
    if not all(map(math.isfinite, (x, y, z))):
        return x * y + z
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact == 0:
        return x * y + z if x == 0 or y == 0 else 0.0
    try:
        rounded = float(exact)
    except OverflowError:
        rounded = math.inf
    return math.copysign(rounded, 1 if exact > 0 else -1)


@X86
def test_fused_multiply_add_rounds_once():
    fma = ctypes.CFUNCTYPE(ctypes.c_double, *[ctypes.c_double] * 3)(mapped("fma", support_text(), BASE))
    rng = random.Random(3)
    cases = [tuple(_doubles(rng) for _ in range(3)) for _ in range(6000)]
    for _ in range(3000):  # the addend nearly cancels the product
        x, y = _doubles(rng), _doubles(rng)
        cases.append((x, y, -x * y * (1 + rng.choice([0, 2**-52, -(2**-53), 2**-30]))))
    cases += [(1e-200, 1e-200, 0.0), (-1e-200, 1e-200, 0.0), (1e-200, 1e-200, 5e-324), (2.0**-537, 2.0**-538, 5e-324)]
    for x, y, z in cases:
        want, got = _fused(x, y, z), fma(x, y, z)
        same = struct.pack("<d", want) == struct.pack("<d", got) or (math.isnan(want) and math.isnan(got))
        assert same, (x.hex(), y.hex(), z.hex(), want.hex(), got.hex())


@X86
def test_fused_multiply_add_of_narrow_floats_rounds_once():
    fma = ctypes.CFUNCTYPE(ctypes.c_float, *[ctypes.c_float] * 3)(mapped("fmaf", support_text(), BASE))
    rng = np.random.default_rng(5)
    bits = rng.integers(0, 2**32, (9000, 3), dtype=np.uint32)
    bits[:3000] &= 0xBFF00000 | 0xFF  # few digits: ties are frequent
    bits[3000:6000] = bits[3000:6000] & 0x807FFFFF | 0x3F000000
    values = bits.view(np.float32)
    with np.errstate(all="ignore"):
        values[6000:7000, 2] = -values[6000:7000, 0] * values[6000:7000, 1]
        for x, y, z in values.tolist():
            exact = Fraction(x) * Fraction(y) + Fraction(z) if all(map(math.isfinite, (x, y, z))) else None
            want = np.float32(x * y + z if not exact else _to_float(exact))
            assert np.array_equal(want, np.float32(fma(x, y, z)), equal_nan=True), (x, y, z)


def _to_float(exact: Fraction) -> float:
    """Rounded to 24 bits, or to a multiple of 2^-149."""
    magnitude = abs(exact)
    power = max(math.frexp(float(magnitude))[1] - 24 if magnitude < 2**200 else 200, -149)
    while magnitude / Fraction(2) ** power >= 2**24:
        power += 1
    return math.copysign(math.ldexp(round(magnitude / Fraction(2) ** power), power), 1 if exact > 0 else -1)


@X86
@pytest.mark.parametrize("suffix", ["", "f"])
@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("floor", np.floor),
        ("ceil", np.ceil),
        ("trunc", np.trunc),
        ("roundeven", np.rint),
        ("rint", np.rint),
        ("nearbyint", np.rint),
    ],
)
def test_rounding(name: str, meaning, suffix: str):
    ctype, dtype = (ctypes.c_float, np.float32) if suffix else (ctypes.c_double, np.float64)
    function = ctypes.CFUNCTYPE(ctype, ctype)(mapped(name + suffix, support_text(), BASE))
    rng = np.random.default_rng(1)
    special = [
        0.0,
        -0.0,
        1e300,
        2.0**52,
        np.inf,
        -np.inf,
        np.nan,
        -1e-300,
        8388607.5,
        4503599627370495.5,
        -0.5 + 2**-54,
    ]
    x = np.concatenate([rng.standard_normal(300) * s for s in (1, 3, 1e7)] + [np.arange(-5, 5.1, 0.5), special])
    with np.errstate(over="ignore"):
        x = x.astype(dtype)
    got = np.array([function(v) for v in x.tolist()], dtype)
    want = meaning(x)
    assert np.array_equal(got, want, equal_nan=True)
    assert np.array_equal(np.signbit(got), np.signbit(want))


HALF = """
define void @f(ptr %params, ptr %operands, i64 %first, i64 %last, i64 %thread) nounwind {{
  %x.at = load ptr, ptr %operands
  %y.slot = getelementptr ptr, ptr %operands, i64 1
  %y.at = load ptr, ptr %y.slot
  %x = load {source}, ptr %x.at
  %y = {op} {source} %x to {target}
  store {target} %y, ptr %y.at
  ret void
}}
"""


@X86
@pytest.mark.parametrize("direction", ["fpext", "fptrunc"])
def test_half_precision_without_an_instruction(direction: str):
    widen = direction == "fpext"
    types = ("half", "float") if widen else ("float", "half")
    text = HALF.format(op=direction, source=types[0], target=types[1])
    assert undefined(Compiler(BASE).object_code(text)), "the test is meant to need a support function"
    function = jit.KERNEL_TYPE(mapped("f", text, BASE))
    if widen:
        x = np.arange(65536, dtype=np.uint16).view(np.float16)
        y = np.zeros(len(x), np.float32)
    else:
        rng = np.random.default_rng(2)
        every = np.arange(0, 65536, dtype=np.uint16).view(np.float16).astype(np.float32)
        with np.errstate(all="ignore"):
            middle = ((every[:-1].astype(np.float64) + every[1:]) / 2).astype(np.float32)
        x = np.concatenate([every, middle, rng.integers(0, 2**32, 20000, dtype=np.uint32).view(np.float32)])
        y = np.zeros(len(x), np.float16)
    operands = np.zeros(2, np.int64)
    for k in range(len(x)):
        operands[:] = (x.ctypes.data + k * x.itemsize, y.ctypes.data + k * y.itemsize)
        function(None, operands.ctypes.data, 0, 1, 0)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(y, x.astype(y.dtype))


@X86
@pytest.mark.parametrize("name", ["memcpy", "memmove"])
def test_copying(name: str):
    pointer = ctypes.c_void_p
    function = ctypes.CFUNCTYPE(pointer, pointer, pointer, ctypes.c_size_t)(mapped(name, support_text()))
    for size in (0, 1, 15, 16, 17, 100):
        for shift in (0, 40, 41, 61) if name == "memmove" else (150,):
            memory = np.arange(256, dtype=np.uint8)
            want = memory.copy()
            want[shift : shift + size] = memory[40 : 40 + size]
            function(memory.ctypes.data + shift, memory.ctypes.data + 40, size)
            assert np.array_equal(memory, want), (size, shift)


@X86
def test_filling():
    function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)(
        mapped("memset", support_text())
    )
    memory = np.zeros(50, np.uint8)
    function(memory.ctypes.data + 3, 0x1FF, 17)
    assert memory.tolist() == [0] * 3 + [255] * 17 + [0] * 30


@X86
def test_support_is_complete_in_itself():
    for target in (machine(), BASE):
        code = Compiler(target).object_code(support_text())
        assert not undefined(code)
        assert set(link([code]).entries) == FUNCTIONS


# other processors

PROGRAM = """
import numpy as np, onnx, sys
sys.path.insert(0, {tests!r})
import accord
from accord.backends.cpu.jit import machine
from accord.runtime.model import Model
from accord.runtime.pipeline import Options
from builders import model, node

assert machine().vector_bits == {bits}, machine()
rng = np.random.default_rng(0)
x = rng.standard_normal((2, 5, 19, 23)).astype(np.float32)
cases = [
    [node("Conv", ["x", "w", "b"], ["t"], pads=[1, 1, 1, 1]), node("Gelu", ["t"], ["u"]), node("Floor", ["u"], ["y"])],
    [node("ReduceMean", ["x"], ["t"], keepdims=1), node("Sub", ["x", "t"], ["y"])],
    [node("Cast", ["x"], ["h"], to=10), node("Exp", ["h"], ["i"]), node("Cast", ["i"], ["y"], to=1)],
    [node("Transpose", ["x"], ["t"], perm=[0, 1, 3, 2]), node("MatMul", ["x", "t"], ["y"])],
    [node("Cast", ["x"], ["d"], to=11), node("Tanh", ["d"], ["y"])],
]
w = {{"w": rng.standard_normal((7, 5, 3, 3)).astype(np.float32), "b": np.ones(7, np.float32)}}
for nodes in cases:
    used = {{i for n in nodes for i in n.input}}
    proto = model(nodes, {{"x": ("float32", x.shape)}}, ["y"], {{k: v for k, v in w.items() if k in used}})
    got = Model(proto, Options(level=0, strict=True))({{"x": x}})[0]
    want = Model(proto, Options(level=0, reference=True))({{"x": x}})[0]
    np.testing.assert_allclose(got, want, rtol=2e-3 if nodes[0].op_type == "Cast" else 1e-4, atol=1e-4)
print("ok")
"""


@X86
@pytest.mark.parametrize(("level", "bits"), [("sse2", 128), ("avx2", 256)])
def test_kernels_for_lesser_processors(level: str, bits: int, monkeypatch):
    if level == "avx2" and "avx2" not in machine().has:
        pytest.skip("this machine lacks AVX2")
    monkeypatch.setenv("ACCORD_CPU", level)
    code = PROGRAM.format(bits=bits, tests=str(Path(__file__).parents[1]))
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "ok\n", done.stderr


AARCH64 = """
import struct, sys
sys.path.insert(0, {tests!r})
from accord.backends.cpu import machine as described

arm = described.describe("aarch64", "Features : fp asimd asimddp", "native")
described.machine = lambda: arm  # before anything else has taken the name

import pytest
from accord.backends.cpu.compiler import Compiler
from accord.backends.cpu import link as linking
from accord.backends.cpu.walker import WalkerSource
from accord.errors import CompileError
from accord.runtime.pipeline import Options, compile_model
from builders import model, node

nodes = [
    node("MatMul", ["x", "x"], ["t"]),
    node("Gelu", ["t"], ["u"]),
    node("Conv", ["u", "w"], ["v"]),
    node("ReduceMax", ["v"], ["y"]),
]
w = __import__("numpy").ones((4, 3, 3, 3), "float32")
proto = model(nodes, {{"x": ("float32", [2, 3, 40, 40])}}, ["y"], {{"w": w}})
plan = compile_model(proto, Options()).plan
assert {{s.placement.backend for s in plan.steps}} == {{"reference"}}
assert "aarch64" in str(plan.steps[0].placement), plan.steps[0].placement
linking.LINKABLE |= {{"aarch64"}}
plan = compile_model(proto, Options(strict=True)).plan
linking.LINKABLE -= {{"aarch64"}}
codes = [p.code for s in plan.steps for p in s.kernel.phases]
assert len(codes) >= 3, codes
for source in [*codes, WalkerSource()]:
    code = Compiler(arm).object_code(source.module(source.symbol))
    assert struct.unpack_from("<H", code, 18) == (183,), "the machine's number in the ELF header"
    with pytest.raises(CompileError, match="aarch64"):
        linking.link([code])
print("ok")
"""


def test_code_for_aarch64_compiles_and_is_refused_by_the_linker():
    code = AARCH64.format(tests=str(Path(__file__).parents[1]))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "ok\n", done.stderr
