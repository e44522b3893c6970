"""Users' kernels within a plan."""

# ruff: noqa: F821, UP037
from __future__ import annotations

import pickle

import numpy as np
import pytest
import triton
import triton.language as tl

import accord
from accord import library
from accord.backends.cuda import parts
from accord.backends.memory import DeviceArray
from accord.contract.code import TritonCode
from accord.expr.lang import call
from builders import model, node
from library_cases_on_gpu import CALLS, CLOSE, agree, calls, of_one, steps, wanted

Tensor = accord.Tensor
F = np.float32


@triton.jit
def twice_kernel(x, output, lead, D, stride_x_0, stride_x_1, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    d = tl.arange(0, BLOCK)
    v = tl.load(x + row * stride_x_0 + d * stride_x_1, mask=d < D)
    tl.store(output + row * D + d, v * 2, mask=d < D)


@triton.jit
def linear_kernel(x, w, output, lead, K, M, alpha, epilogue: tl.constexpr, extras, BLOCK: tl.constexpr):
    """A program computes some columns of a row; blocks end where they like."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < lead * M
    row, column = place // M, place % M
    total = tl.zeros([BLOCK], tl.float32)
    for k in range(K):
        a = tl.load(x + row * K + k, mask=inside, other=0).to(tl.float32)
        total += a * tl.load(w + k * M + column, mask=inside, other=0).to(tl.float32)
    value = total * alpha
    if epilogue is not None:
        value = epilogue(value, place, inside, extras)
    tl.store(output + place, value, mask=inside)


@triton.jit
def first_kernel(x, workspace, D, BLOCK: tl.constexpr):
    d = tl.arange(0, BLOCK)
    scratch = workspace.to(tl.pointer_type(tl.float32))
    tl.store(scratch + d, tl.load(x + d, mask=d < D, other=0) * 3, mask=d < D)


@triton.jit
def second_kernel(workspace, output0, output1, D, BLOCK: tl.constexpr):
    d = tl.arange(0, BLOCK)
    scratch = workspace.to(tl.pointer_type(tl.float32))
    v = tl.load(scratch + d, mask=d < D, other=0)
    tl.store(output0 + d, v + 1, mask=d < D)
    tl.store(output1, tl.sum(v, 0))


@pytest.mark.parametrize("name", [n for n in CALLS if n != "non_max_suppression"])
def test_operators_of_the_library_run_their_triton_kernel(gpu, name):
    operator, dtype = getattr(library, name), CALLS[name][0][0]
    seen = 0
    for k, (inputs, attributes) in enumerate(calls(name, dtype)):
        if seen >= 3 or sum(0 if x is None else x.size for x in inputs) > 20000:
            continue
        expected = wanted(operator, inputs, attributes)
        proto, feed = of_one(operator.contract, inputs, attributes, symbolic=bool(k % 2), count=len(expected))
        m = accord.load(proto, device="cuda")
        assert steps(m) == [("cuda", f"accord::{operator.contract.semantic.name} (triton)")], (inputs, attributes)
        for _ in range(2):
            for got, exact in zip(m(feed), expected, strict=True):
                assert got.dtype == exact.dtype
                agree(got, exact, CLOSE[dtype], f"{name} {attributes}")
        seen += 1
    assert seen


def test_a_size_that_depends_on_data_is_for_no_kernel_that_writes_into_given_memory(gpu):
    boxes = np.array([[0, 0, 4, 4], [0, 0, 4, 5], [9, 9, 12, 12]], F)
    one = node("NonMaxSuppression", ["x0", "x1"], ["y"], domain="accord")
    proto = model([one], {"x0": (F, ["n", 4]), "x1": (F, ["n"])}, ["y"], domains={"accord": 1})
    m = accord.load(proto, device="cuda")
    assert "compose-operators" in {p.rule for p in m.compiled.log.patches}
    assert m(boxes, np.array([3, 2, 1], F))[0].tolist() == [0, 2]


@pytest.mark.parametrize("width", [5, 40])
@pytest.mark.parametrize("op", ["LayerNorm", "RMSNorm", "Softmax", "GroupNorm", "Linear", "Conv2d", "depthwise"])
def test_what_follows_an_operator_of_the_library_is_done_in_its_kernel(gpu, op, width, monkeypatch):
    """As many steps as with a built-in operator; long rows too, whose kernel is another."""
    monkeypatch.setattr("accord.library.gpu.norms.LONGEST", 16)
    monkeypatch.setattr("accord.library.gpu.norms.PIECE", 16)
    images = op in ("GroupNorm", "Conv2d", "depthwise")
    shape = [2, 4, 3, width] if images else [3, width]
    weights = {
        "LayerNorm": {"w": [width], "b": [width]}, "RMSNorm": {"w": [width]}, "GroupNorm": {"w": [4], "b": [4]},
        "Softmax": {}, "Linear": {"w": [6, width]}, "Conv2d": {"w": [6, 4, 3, 3]}, "depthwise": {"w": [4, 1, 3, 3]},
    }[op]  # fmt: skip
    attributes = {"GroupNorm": {"groups": 2}, "Conv2d": {"padding": 1}, "depthwise": {"padding": 1, "groups": 4}}
    rng = np.random.default_rng(0)
    constants = {n: rng.standard_normal(s).astype(F) for n, s in weights.items()}
    nodes = [
        node(op.replace("depthwise", "Conv2d"), ["x", *constants], ["h"], domain="accord", **attributes.get(op, {})),
        node("Tanh", ["h"], ["t"]),
        node("Mul", ["t", "c"], ["m"]),
        node("Add", ["m", "r"], ["y"]),
    ]
    out = list(shape)
    if op in ("Linear", "Conv2d"):
        out[1] = 6
    feeds = {"x": shape, "c": [out[1], 1, 1] if images else [out[1]], "r": out}
    proto = model(nodes, {n: (F, s) for n, s in feeds.items()}, ["y"], constants, domains={"accord": 1})
    feed = {n: rng.standard_normal(s).astype(F) for n, s in feeds.items()}
    m = accord.load(proto, device="cuda")
    assert len(steps(m)) == 1, steps(m)
    np.testing.assert_allclose(m(feed)[0], accord.load(proto)(feed)[0], rtol=1e-4, atol=1e-5)


def block(k):
    return {"BLOCK": triton.next_power_of_2(max(k["D"], 1))}


def twice(**clauses):
    @accord.operator("shop::Twice")
    def reference(x: Tensor["float32", "N", "D"]) -> Tensor["float32", "N", "D"]:
        return x * 2

    return reference.triton(TritonCode(twice_kernel, lambda k: (k["N"],), block), **clauses)


def around(op="Twice", **attributes):
    """The operator behind a Transpose and before elementwise operators."""
    return model(
        [
            node("Transpose", ["x"], ["t"], perm=[1, 0]),
            node(op, ["t"], ["s"], domain="shop", **attributes),
            node("Relu", ["s"], ["r"]),
            node("Add", ["r", "s"], ["y"]),
        ],
        {"x": (F, ["d", "n"])},
        ["y"],
        domains={"shop": 1},
    )


@pytest.mark.parametrize("strided", [True, False])
def test_layouts_are_as_declared(gpu, strided):
    twice(execution={"layouts": ("contiguous", "strided") if strided else ("contiguous",)})
    m = accord.load(around(), device="cuda")
    own = [s for s in m.plan.steps if s.kernel.name == "shop::Twice (triton)"]
    assert len(own) == 1
    assert own[0].placement.backend == "cuda"
    moves = [name for _, name in steps(m) if name.startswith("move")]
    assert len(moves) == (0 if strided else 1), steps(m)
    x = np.random.default_rng(0).standard_normal((5, 3)).astype(F)
    for _ in range(4):
        np.testing.assert_array_equal(m(x)[0], np.maximum(2 * x.T, 0) + 2 * x.T)
    for shape in [(1, 1), (0, 4), (7, 2)]:
        x = np.random.default_rng(0).standard_normal(shape).astype(F)
        np.testing.assert_array_equal(m(x)[0], np.maximum(2 * x.T, 0) + 2 * x.T)


@pytest.mark.parametrize("safe", [True, False])
def test_what_must_not_be_captured_is_started_by_itself(gpu, safe):
    twice(scheduling={"capture_safe": safe})
    nodes = [
        node("Softmax", ["x"], ["a"]),
        node("Twice", ["a"], ["b"], domain="shop"),
        node("Softmax", ["b"], ["c"]),
        node("Transpose", ["c"], ["y"], perm=[1, 0]),
    ]
    m = accord.load(model(nodes, {"x": (F, ["n", 6])}, ["y"], domains={"shop": 1}), device="cuda")
    x = np.random.default_rng(0).standard_normal((3, 6)).astype(F)
    for _ in range(4):
        first = m(x)[0]
    assert gpu.replayed > 0
    started = gpu.started.count("twice_kernel")
    gpu.replayed = 0
    np.testing.assert_array_equal(m(x)[0], first)
    assert gpu.started.count("twice_kernel") == started + 1
    (pair,) = m._first.executor._frames.values()
    made = [stage.part for stage in pair[0].segments[0][0]._stages]
    found = [(sum(not isinstance(e.item, parts.Copy) for e in part._entries), len(part._graphs)) for part in made]
    assert found == ([(4, 1)] if safe else [(1, 1), (1, 0), (2, 1)])
    notes = [s.kernel.note for s in m.plan.steps if s.kernel.name == "shop::Twice (triton)"]
    assert bool(notes[0]) != safe


def linear(**clauses):
    @accord.operator("shop::Linear")
    def reference(x: Tensor["T", ..., "K"], w: Tensor["T", "K", "M"], *, alpha: float = 0.5) -> Tensor["T", ..., "M"]:
        return (x.astype(F) @ w.astype(F) * F(alpha)).astype(x.dtype)

    return reference.types(T=["float32", "float16"]).triton(
        TritonCode(linear_kernel, lambda k: (-(-k["lead"] * k["M"] // k["BLOCK"]),), {"BLOCK": 16}), **clauses
    )


@pytest.mark.parametrize("dtype", [F, np.float16])
@pytest.mark.parametrize("declares", [True, False])
def test_a_kernel_that_declares_an_epilogue_takes_what_follows(gpu, declares, dtype):
    operator = linear(scheduling={"epilogue": declares})
    rng = np.random.default_rng(1)
    w, b = rng.standard_normal((6, 5)).astype(dtype), rng.standard_normal(5).astype(dtype)
    proto = model(
        [
            node("Linear", ["x", "w"], ["l"], domain="shop", alpha=0.25),
            node("Add", ["l", "b"], ["a"]),
            node("Sigmoid", ["a"], ["s"]),
            node("Mul", ["s", "column"], ["m"]),
            node("Add", ["m", "other"], ["z"]),
            node("Mul", ["z", "scalar"], ["y"]),
        ],
        {
            "x": (dtype, ["p", "n", 6]),
            "column": (dtype, ["n", 1]),
            "other": (dtype, ["p", "n", 5]),
            "scalar": (dtype, [1]),
        },
        ["y"],
        {"w": w, "b": b},
        domains={"shop": 1},
    )
    m = accord.load(proto, device="cuda")
    assert len(steps(m)) == (1 if declares else 2), steps(m)
    for p, n in [(1, 1), (2, 3), (3, 5), (1, 8), (0, 4), (2, 3)]:
        x, column, other, scalar = (rng.standard_normal(s).astype(dtype) for s in [(p, n, 6), (n, 1), (p, n, 5), (1,)])
        z = operator(x, w, alpha=0.25).astype(F) + b
        expected = (column / (1 + np.exp(-z)) + other) * scalar
        close = 1e-5 if dtype == F else 4e-3
        np.testing.assert_allclose(m(x, column, other, scalar)[0], expected, rtol=close, atol=close)


def test_an_epilogue_follows_strides_and_rounds_to_the_kernels_type(gpu):
    linear(scheduling={"epilogue": True})
    proto = model(
        [
            node("Transpose", ["o"], ["t"], perm=[1, 0]),
            node("Linear", ["x", "w"], ["l"], domain="shop"),
            node("Add", ["l", "t"], ["y"]),
        ],
        {"x": (F, [4, 6]), "o": (F, [5, 4])},
        ["y"],
        {"w": np.eye(6, 5, dtype=F)},
        domains={"shop": 1},
    )
    m = accord.load(proto, device="cuda")
    rng = np.random.default_rng(1)
    x, o = rng.standard_normal((4, 6)).astype(F), rng.standard_normal((5, 4)).astype(F)
    np.testing.assert_allclose(m(x, o)[0], x[:, :5] / 2 + o.T, rtol=1e-6)
    proto.graph.node.append(node("Cast", ["y"], ["h"], to=10))
    proto.graph.output[0].name = "h"
    got = accord.load(proto, device="cuda")(x, o)[0]
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, (x[:, :5] / 2 + o.T).astype(np.float16))


def test_a_kernel_has_workspace_and_unwanted_outputs_go_to_scratch_memory(gpu):
    @accord.operator("shop::Tripled")
    def tripled(x: Tensor["float32", "D"]) -> tuple[Tensor["float32", "D"], Tensor["float32", 1]]:
        return x * 3 + 1, (x * 3).sum(keepdims=True)

    tripled.execution(workspace="4 * D").triton(
        TritonCode(first_kernel, lambda k: (1,), block), TritonCode(second_kernel, lambda k: (1,), block)
    )
    for outputs in (["y", "z"], ["y", ""], ["", "z"]):
        wanted_names = [o for o in outputs if o]
        proto = model([node("Tripled", ["x"], outputs, domain="shop")], {"x": (F, ["d"])}, wanted_names,
                      domains={"shop": 1})  # fmt: skip
        m = accord.load(proto, device="cuda")
        assert steps(m) == [("cuda", "shop::Tripled (triton)")]
        for d in (5, 40):
            x = np.arange(d, dtype=F)
            got = m(x)
            expected = {"y": x * 3 + 1, "z": np.array([x.sum() * 3])}
            for name in wanted_names:
                np.testing.assert_array_equal(got[name], expected[name])


def test_expressions_and_compositions_fuse(gpu):
    @accord.operator("shop::Quick")
    def quick(x: Tensor["T", ..., "D"], b: Tensor["T", "D"], *, slope: float = 1.702) -> Tensor["T", ..., "D"]:
        z = x + b
        return z / (1 + np.exp(-F(slope) * z))

    quick.types(T=["float32"]).scheduling(fuses="elementwise")
    quick.expression(lambda x, b, *, slope: (x + b) * call("sigmoid", (x + b) * slope))

    @accord.operator("shop::Squares")
    def squares(x: Tensor["float32", "N", "D"]) -> Tensor["float32", "N", "D"]:
        return x * x / 2

    squares.python(lambda x: x * x / 2)
    squares.composition(lambda b, x: b("Mul", b("Mul", x, x), b.const(np.array(0.5, F))))
    proto = model(
        [
            node("MatMul", ["x", "w"], ["m"]),
            node("Quick", ["m", "b"], ["q"], domain="shop", slope=1.5),
            node("Squares", ["q"], ["s"], domain="shop"),
            node("Add", ["s", "x"], ["y"]),
        ],
        {"x": (F, ["n", 8]), "b": (F, [8])},
        ["y"],
        {"w": np.eye(8, dtype=F)},
        domains={"shop": 1},
    )
    m = accord.load(proto, device="cuda")
    assert len(steps(m)) == 1, steps(m)
    x, b = np.random.default_rng(0).standard_normal((5, 8)).astype(F), np.linspace(-1, 1, 8).astype(F)
    np.testing.assert_allclose(m(x, b)[0], quick(x, b, slope=1.5) ** 2 / 2 + x, rtol=1e-5, atol=1e-6)
    alone = model([node("Quick", ["x", "b"], ["y"], domain="shop")], {"x": (F, ["n", 8]), "b": (F, [8])}, ["y"],
                  domains={"shop": 1})  # fmt: skip
    m = accord.load(alone, device="cuda")
    assert [b for b, _ in steps(m)] == ["cuda"]
    np.testing.assert_allclose(m(x, b)[0], quick(x, b), rtol=1e-5, atol=1e-6)


def test_a_composition_stands_in_where_no_run_can_let_the_kernel_run(gpu):
    """Sizes that the contract ties are no reason to wait for the run, though the model leaves them open."""

    @accord.operator("shop::Large")
    def large(x: Tensor["float32", "N", 4], y: Tensor["float32", "2 * N"]) -> Tensor["float32", "some"]:
        return x[(x.sum(1) > y[: len(x)])].sum(1)

    large.triton(TritonCode(twice_kernel, lambda k: (1,), lambda k: {"BLOCK": 4}))

    @large.composition
    def made(b, x, y):
        total = b("ReduceSum", x, b.ints(1), keepdims=0)
        half = b("Slice", y, b.ints(0), b("Shape", total))
        return b("Compress", total, b("Greater", total, half), axis=0)

    proto = model([node("Large", ["x", "y"], ["z"], domain="shop")], {"x": (F, ["n", "k"]), "y": (F, ["m"])}, ["z"],
                  domains={"shop": 1})  # fmt: skip
    m = accord.load(proto, device="cuda")
    assert {b for b, _ in steps(m)} <= {"cuda", "plan"}, steps(m)
    x, y = np.arange(12, dtype=F).reshape(3, 4), np.array([7, 7, 90, 0, 0, 0], F)
    assert m(x, y)[0].tolist() == [22.0]


def test_a_contract_without_a_kernel_for_gpus_runs_on_the_host_with_that_reason(gpu):
    @accord.operator("shop::Count")
    def count(x: Tensor["float32", "N"]) -> Tensor["int64", 1]:
        raise AssertionError("the kernel runs")

    count.python(lambda x: np.array([np.count_nonzero(x)]))
    proto = model(
        [node("Relu", ["x"], ["r"]), node("Count", ["r"], ["y"], domain="shop")], {"x": (F, ["n"])}, ["y"],
        domains={"shop": 1},
    )  # fmt: skip
    m = accord.load(proto, device="cuda")
    (place,) = [s.placement for s in m.plan.steps if s.placement.op == "shop::Count"]
    assert place.backend == "cpu"
    assert "no kernel for cuda is declared" in place.reason
    assert m(np.array([-1, 1, 2], F))[0].tolist() == [2]


def test_conditions_dtypes_and_architectures_choose_the_kernel(gpu):
    @accord.operator("shop::Twice")
    def reference(x: Tensor["T", "N", "D"]) -> Tensor["T", "N", "D"]:
        return x * 2

    reference.types(T=["float32", "float64"])
    launch = TritonCode(twice_kernel, lambda k: (k["N"],), block)
    reference.triton(launch, name="even", constraints=["D % 2 == 0"], types={"T": ["float32"]})
    reference.triton(launch, name="new", execution={"architectures": ("sm_90",)}, types={"T": ["float32"]})

    def kernel_of(dtype, d):
        one = model([node("Twice", ["x"], ["y"], domain="shop")], {"x": (dtype, ["n", d])}, ["y"], domains={"shop": 1})
        (place,) = [s.placement for s in accord.load(one, device="cuda").plan.steps if s.placement.op == "shop::Twice"]
        return place

    assert kernel_of(F, 4).kernel.name == "shop::Twice (even)"
    assert kernel_of(F, 4).kernel.alternatives == ("even", "new")
    assert "kernel 'new' is for sm_90, and this is sm_80" in kernel_of(F, 3).reason
    assert "it is not for float64" in kernel_of(np.float64, 4).reason


def test_another_of_the_declared_kernels_can_be_chosen(gpu):
    one = node("LayerNorm", ["x", "w", "b"], ["y"], domain="accord", name="norm")
    proto = model([one], {"x": (F, [4, 32]), "w": (F, [32]), "b": (F, [32])}, ["y"], domains={"accord": 1})
    assert steps(accord.load(proto, device="cuda")) == [("cuda", "accord::LayerNorm (triton)")]
    m = accord.load(proto, device="cuda", choices={"norm": "cuda"})
    assert steps(m) == [("cuda", "accord::LayerNorm (cuda)")]
    (step,) = [s for s in m.plan.steps if s.kernel.name == "accord::LayerNorm (cuda)"]
    launch = step.kernel.phases[0].launch(())
    assert launch.block[0] > 0
    assert len(launch.order) == len(step.kernel.phases[0].code.code.parameters)


def test_a_callers_memory_that_is_not_aligned_as_declared_is_copied(gpu, monkeypatch):
    twice(execution={"alignment": 32})
    one = model([node("Twice", ["x"], ["y"], domain="shop")], {"x": (F, ["n", "d"])}, ["y"], domains={"shop": 1})
    m = accord.load(one, device="cuda")
    memory = m._first.executor.backends["cuda"].memory
    x = np.arange(12, dtype=F).reshape(3, 4)
    copies, original = [], parts.Copy.start
    monkeypatch.setattr(parts.Copy, "start", lambda self, s: copies.append(self.is_idle) or original(self, s))
    for shift in (0, 4, 32, 48):
        for lent in ("x", "y"):
            block_ = memory.allocate(256)
            far = DeviceArray(memory, block_.address + shift, x.shape, x.dtype, block_)
            far.assign(x)
            copies.clear()
            result = m(far)[0] if lent == "x" else m.run_into({"x": x}, {"y": far})[0].numpy()
            np.testing.assert_array_equal(result, 2 * x)
            assert copies.count(False) == (1 if shift % 32 == 0 else 2)


def test_launches_can_be_stored(gpu):
    name = "accord::LayerNorm (triton)"
    one = node("LayerNorm", ["x", "w", "b"], ["y"], domain="accord")
    proto = model([one], {"x": (F, ["n", 32]), "w": (F, [32]), "b": (F, [32])}, ["y"], domains={"accord": 1})
    (kernel,) = [s.kernel for s in accord.load(proto, device="cuda").plan.steps if s.kernel.name == name]
    again = pickle.loads(pickle.dumps(kernel))
    sizes = [4, 32, 32, 1, 0, 32, 1, 0, 32, 1, 0, 4, 32, 32, 1, 0]
    assert again.phases[0].launch(sizes) == kernel.phases[0].launch(sizes)
    assert again.phases[0].code.contract is kernel.phases[0].code.contract
