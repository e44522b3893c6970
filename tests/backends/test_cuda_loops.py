"""The expression language and loop programs in Triton, beside the CPU's kernels; no GPU is needed."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed (pip install 'accord[cuda]')")

sys.path.append(str(Path(__file__).parents[1] / "expr"))

from expr_harness import compile_elementwise, same_bits, special_values
from triton_harness import NUMPY, Program, elementwise

import accord
from accord.backends.cpu import loops
from accord.backends.cuda.printer import _SHORT
from accord.expr.lang import DTYPES, call, cast, operand
from accord.expr.math import FUNCTIONS
from accord.expr.primitives import PRIMITIVES
from builders import model, node

F = np.float32


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("triton")


def pairs(dtype, count):
    grid = np.meshgrid(*[special_values(dtype)] * count)
    return [np.ascontiguousarray(g.ravel()) for g in grid]


def check(folder, expr, arrays, types):
    name = "e" + hashlib.sha256(expr.key.encode()).hexdigest()[:16]
    expected = compile_elementwise(expr, len(arrays))(*arrays)
    assert same_bits(elementwise(folder, name, expr, arrays, types), expected), expr


@pytest.mark.parametrize("op", sorted(PRIMITIVES.keys() - {"rare", "fma"}))
def test_primitives_have_the_bits_of_the_cpu(folder, op):
    signature = PRIMITIVES[op]
    for dtype in sorted(signature.types - {"f16", "bf16"}):
        arrays = pairs(dtype, signature.arity - signature.condition)
        types = [dtype] * len(arrays)
        if signature.condition:
            arrays, types = [np.arange(arrays[0].size) % 3 == 0, *arrays], ["bool", *types]
        if op == "ldexp":
            arrays[1] = np.clip(np.nan_to_num(np.round(arrays[1])), -252, 252).astype(arrays[1].dtype)
        result = "bool" if signature.result == "bool" else dtype
        check(folder, call(op, *(operand(k, t) for k, t in enumerate(types)), dtype=result), arrays, types)


@pytest.mark.parametrize("source", sorted(DTYPES - {"bf16"}))
def test_conversions_have_the_bits_of_the_cpu(folder, source):
    """All but those to bfloat16, which the interpreter truncates."""
    for target in sorted(DTYPES - {"bf16", source}):
        check(folder, cast(operand(0, source), target), [special_values(source)], [source])


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_functions(folder, name):
    """To a few units in the last place: some versions of the interpreter round a fused multiply-add twice."""
    count = 2 if name in ("pow", "fmod", "floor_mod") else 1
    rng = np.random.default_rng(0)
    values = rng.standard_normal(300) * 10.0 ** rng.integers(-3, 3, 300)
    for dtype in ("f32", "f64"):
        x = np.concatenate([special_values(dtype), values.astype(NUMPY[dtype])])
        expr, arrays = call(name, *(operand(k, dtype) for k in range(count))), [x, np.roll(x, 7)][:count]
        expected = compile_elementwise(expr, count)(*arrays)
        got = elementwise(folder, f"{name}_{dtype}", expr, arrays, [dtype] * count)
        near = 16 * np.finfo(NUMPY[dtype]).eps
        np.testing.assert_allclose(got, expected, rtol=near, atol=np.finfo(NUMPY[dtype]).smallest_normal)


@pytest.mark.parametrize("short", ["f16", "bf16"])
@pytest.mark.parametrize("name", sorted(_SHORT))
def test_functions_of_results_of_16_bits(folder, name, short):
    """Closer than half a unit in the last place of the type, relative to the result."""
    rng = np.random.default_rng(0)
    x = np.concatenate([special_values("f32"), rng.standard_normal(400) * 10.0 ** rng.integers(-6, 2, 400)]).astype(F)
    if name == "rsqrt":
        x = np.abs(x)
    expr = call(name, operand(0, "f32"))
    with np.errstate(all="ignore"):
        expected = compile_elementwise(expr, 1)(x).astype(np.float64)
        got = elementwise(folder, f"{short}_{name}", expr, [x], ["f32"], short=short).astype(np.float64)
    # what float16 cannot hold is none of its results; less than half of its least number is nothing
    plain = np.isfinite(expected) & (np.abs(expected) < 65504) & (np.abs(x) < 1e30)
    least = 2.0**-25 if short == "f16" else 2.0**-26
    np.testing.assert_allclose(got[plain], expected[plain], rtol=2.0**-13, atol=least)
    assert np.isnan(got[np.isnan(x)]).all()


def one(op, shape, dtype=F, extra=(), opset=24, **attributes):
    names = [f"i{k}" for k in range(1 + len(extra))]
    inputs = {n: (dtype, s) for n, s in zip(names, [shape, *extra], strict=True)}
    return model([node(op, names, ["y"], **attributes)], inputs, ["y"])


def chain(*nodes, inputs, constants=None):
    return model([node(*n[:3], **(n[3] if len(n) > 3 else {})) for n in nodes], inputs, [nodes[-1][2][0]], constants)


MODELS = {
    "softmax": one("Softmax", [3, 5, 37]),
    "softmax, middle axis": one("Softmax", [3, 37, 6], axis=1),
    "softmax, symbolic": one("Softmax", ["n", "d"]),
    "layer norm": one("LayerNormalization", [4, 129], extra=([129], [129])),
    "layer norm, half": one("LayerNormalization", [4, 129], np.float16, extra=([129], [129])),
    "instance norm": one("InstanceNormalization", [2, 3, 6, 7], extra=([3], [3])),
    "rms norm": one("RMSNormalization", ["n", 64], extra=([64],)),
    "mean of rows": one("ReduceMean", [5, 7, 11], keepdims=0),
    "long rows": one("ReduceL2", [2, 20_011], keepdims=0),
    "arg max": one("ArgMax", [5, 23], axis=1),
    "arg min, last": one("ArgMin", [23, 5], axis=0, select_last_index=1),
    "product of integers": one("ReduceProd", [3, 4], np.int64),
    "broadcast": one("Add", [3, 1, 5], extra=([4, 1],)),
    "where": model(
        [node("Where", ["c", "x", "z"], ["y"])],
        {"c": (np.bool_, [3, 1]), "x": (F, [3, 4]), "z": (F, [4])},
        ["y"],
    ),
    "compare": one("Less", [3, 70], extra=([70],)),
    "transposed": chain(
        ("Transpose", ["x"], ["t"], {"perm": [0, 2, 1]}), ("Exp", ["t"], ["y"]), inputs={"x": (F, [2, 65, 33])}
    ),
    "transposed, symbolic": chain(
        ("Transpose", ["x"], ["t"], {"perm": [1, 0]}), ("Exp", ["t"], ["y"]), inputs={"x": (F, ["a", "b"])}
    ),
    "cast": one("Cast", [100], to=7),
    "gelu chain": chain(
        ("Add", ["x", "b"], ["s"]),
        ("Gelu", ["s"], ["g"]),
        ("Mul", ["g", "x"], ["y"]),
        inputs={"x": (F, ["n", 30]), "b": (F, [30])},
    ),
    "residual and norm": chain(
        ("Add", ["x", "z"], ["s"]),
        ("LayerNormalization", ["s", "w"], ["l"]),
        ("Tanh", ["l"], ["y"]),
        inputs={"x": (F, ["n", 48]), "z": (F, ["n", 48]), "w": (F, [48])},
    ),
    "shuffled channels": chain(
        ("Reshape", ["x", "s"], ["a"]),
        ("Transpose", ["a"], ["t"], {"perm": [0, 2, 1, 3]}),
        ("Reshape", ["t", "u"], ["r"]),
        ("Relu", ["r"], ["y"]),
        inputs={"x": (F, [2, 6, 10])},
        constants={"s": np.array([2, 2, 3, 10]), "u": np.array([2, 6, 10])},
    ),
}


@pytest.fixture
def programs(monkeypatch):
    """What was made into loops since."""
    found = {}
    made = loops.lower_loops

    def noted(program, sources, targets, scratch):
        low = made(program, sources, targets, scratch)
        found[repr(program)] = (program, low.phases[0], sources, low.workspace)
        return low

    monkeypatch.setattr(loops, "lower_loops", noted)
    monkeypatch.setenv("ACCORD_CACHE", "off")
    return found


@pytest.mark.parametrize("name", MODELS)
def test_loop_programs_give_what_the_cpu_gives(folder, programs, name):
    accord.load(MODELS[name], threads=1)
    assert programs
    rng = np.random.default_rng(1)
    for program, phase, sources, workspace in list(programs.values())[-3:]:
        for _ in range(2):
            case = Program(program, phase, sources, workspace, rng)
            for got, expected in zip(case.in_triton(folder), case.on_cpu(), strict=True):
                assert got.dtype == expected.dtype
                if got.dtype.kind != "f":
                    np.testing.assert_array_equal(got, expected)
                else:
                    tolerance = 2e-3 if got.dtype == np.float16 else 3e-6
                    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
