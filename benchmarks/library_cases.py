"""The cases of ``benchmarks/library.py``: inputs, and the same computation in other words."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from builders import model, node

__all__ = ["CASES", "Case"]

F = np.float32


@dataclass
class Case:
    """One case.

    Attributes:
        what: Sizes, for people.
        model: Of the library's operator.
        feed: Inputs.
        nodes: A model of what an exporter would write.
        peer: A model for ONNX Runtime, where that is another.
        torch: From the module and the inputs to functions by name.
        options: Further ways to load ``model``, by name.
        moved: Bytes read and written, for a speed; 0 where that says nothing.
        copied: Name of an input whose copy is timed too.
    """

    what: str
    model: onnx.ModelProto
    feed: Mapping[str, Any]
    nodes: onnx.ModelProto | None = None
    peer: onnx.ModelProto | None = None
    torch: Callable[[Any, Mapping[str, Any]], dict[str, Callable[[], Any]]] | None = None
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    moved: int = 0
    copied: str = ""


def _normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


def _of(
    feed: Mapping[str, Any], nodes: Sequence[Any], constants: Mapping[str, Any] | None = None, out: str = "y"
) -> Any:
    inputs = {n: (v.dtype, v.shape) for n, v in feed.items()}
    return model(list(nodes), inputs, [out], dict(constants or {}), domains={"accord": 1})


def _own(name: str, feed: Mapping[str, Any], constants: Mapping[str, Any] | None = None, **attributes: Any) -> Any:
    """A model of one library operator on all of the feed, then constants, in order."""
    names = [*feed, *(constants or {})]
    return _of(feed, [node(name, names, ["y"], domain="accord", **attributes)], constants)


def _channel_shuffle(n: int) -> Case:
    """As in ShuffleNet."""
    c, h, w, g = 240, 28, 28, 3
    feed = {"x": _normal(n, c, h, w)}
    nodes = [
        node("Reshape", ["x", "split"], ["a"]),
        node("Transpose", ["a"], ["b"], perm=[0, 2, 1, 3, 4]),
        node("Reshape", ["b", "whole"], ["y"]),
    ]
    shapes = {"split": np.array([n, g, c // g, h, w]), "whole": np.array([n, c, h, w])}

    def torch(t: Any, x: Any) -> Any:
        return {"torch": lambda: t.nn.functional.channel_shuffle(x["x"], g).contiguous()}

    return Case(
        f"{n}x{c}x{h}x{w}, {g} groups", _own("ChannelShuffle", feed, groups=g), feed, _of(feed, nodes, shapes),
        torch=torch, moved=2 * feed["x"].nbytes, copied="x",
    )  # fmt: skip


def _layer_norm(rows: int, size: int) -> Case:
    feed = {"x": _normal(rows, size)}
    weights = {"w": _normal(size, seed=1), "b": _normal(size, seed=2)}
    nodes = [
        node("ReduceMean", ["x", "last"], ["m"]),
        node("Sub", ["x", "m"], ["d"]),
        node("Mul", ["d", "d"], ["s"]),
        node("ReduceMean", ["s", "last"], ["v"]),
        node("Add", ["v", "eps"], ["e"]),
        node("Sqrt", ["e"], ["r"]),
        node("Div", ["d", "r"], ["n"]),
        node("Mul", ["n", "w"], ["p"]),
        node("Add", ["p", "b"], ["y"]),
    ]
    constants = {**weights, "last": np.array([-1]), "eps": F(1e-5)}

    def torch(t: Any, x: Any) -> Any:
        w, b = (t.from_numpy(v) for v in weights.values())
        return {"torch": lambda: t.nn.functional.layer_norm(x["x"], (size,), w, b)}

    return Case(
        f"{rows}x{size}", _own("LayerNorm", feed, weights), feed, _of(feed, nodes, constants),
        _of(feed, [node("LayerNormalization", ["x", "w", "b"], ["y"])], weights), torch, moved=2 * feed["x"].nbytes,
    )  # fmt: skip


def rms_norm() -> Case:
    """As in Llama."""
    rows, size = 512, 4096
    feed, weights = {"x": _normal(rows, size)}, {"w": _normal(size, seed=1)}
    nodes = [
        node("Mul", ["x", "x"], ["s"]),
        node("ReduceMean", ["s", "last"], ["v"]),
        node("Add", ["v", "eps"], ["e"]),
        node("Sqrt", ["e"], ["r"]),
        node("Div", ["x", "r"], ["n"]),
        node("Mul", ["n", "w"], ["y"]),
    ]

    def torch(t: Any, x: Any) -> Any:
        w = t.from_numpy(weights["w"])
        return {"torch": lambda: t.nn.functional.rms_norm(x["x"], (size,), w, 1e-5)}

    return Case(
        f"{rows}x{size}", _own("RMSNorm", feed, weights), feed,
        _of(feed, nodes, {**weights, "last": np.array([-1]), "eps": F(1e-5)}), torch=torch, moved=2 * feed["x"].nbytes,
    )  # fmt: skip


def group_norm() -> Case:
    """As in a diffusion model."""
    feed = {"x": _normal(2, 320, 64, 64)}
    weights = {"w": _normal(320, seed=1), "b": _normal(320, seed=2)}

    def torch(t: Any, x: Any) -> Any:
        w, b = (t.from_numpy(v) for v in weights.values())
        return {"torch": lambda: t.nn.functional.group_norm(x["x"], 32, w, b)}

    return Case(
        "2x320x64x64, 32 groups", _own("GroupNorm", feed, weights, groups=32), feed,
        peer=_of(feed, [node("GroupNormalization", ["x", "w", "b"], ["y"], num_groups=32)], weights),
        torch=torch, moved=2 * feed["x"].nbytes,
    )  # fmt: skip


def softmax() -> Case:
    """Rows of scores."""
    feed = {"x": _normal(4096, 512)}
    return Case(
        "4096x512", _own("Softmax", feed), feed, _of(feed, [node("Softmax", ["x"], ["y"])]),
        torch=lambda t, x: {"torch": lambda: t.softmax(x["x"], -1)}, moved=2 * feed["x"].nbytes,
    )  # fmt: skip


def gelu() -> Case:
    """Alone; in a model it costs nothing beside its neighbours."""
    feed = {"x": _normal(1024, 1024)}
    nodes = [
        node("Mul", ["x", "r"], ["a"]), node("Erf", ["a"], ["b"]), node("Add", ["b", "one"], ["c"]),
        node("Mul", ["x", "c"], ["d"]), node("Mul", ["d", "half"], ["y"]),
    ]  # fmt: skip
    constants = {"r": F(0.5**0.5), "one": F(1), "half": F(0.5)}
    return Case(
        "1 M", _own("GELU", feed), feed, _of(feed, nodes, constants), _of(feed, [node("Gelu", ["x"], ["y"])]),
        lambda t, x: {"torch": lambda: t.nn.functional.gelu(x["x"])}, moved=2 * feed["x"].nbytes,
    )  # fmt: skip


def linear() -> Case:
    """A product whose epilogue is a bias, GELU and a residual."""
    feed = {"x": _normal(256, 768), "r": _normal(256, 768, seed=3)}
    weights = {"w": _normal(768, 768, seed=1), "b": _normal(768, seed=2)}
    own = [node("Linear", ["x", "w", "b", "r"], ["y"], domain="accord", activation="gelu")]
    nodes = [
        node("Gemm", ["x", "w", "b"], ["a"], transB=1), node("Gelu", ["a"], ["g"]), node("Add", ["g", "r"], ["y"])
    ]  # fmt: skip

    def torch(t: Any, x: Any) -> Any:
        w, b, f = t.from_numpy(weights["w"]), t.from_numpy(weights["b"]), t.nn.functional
        return {"torch": lambda: f.gelu(f.linear(x["x"], w, b)) + x["r"]}

    return Case("256x768x768", _of(feed, own, weights), feed, _of(feed, nodes, weights), torch=torch)


def conv2d() -> Case:
    """A layer of ResNet-50."""
    feed, weights = {"x": _normal(1, 64, 56, 56)}, {"w": _normal(64, 64, 3, 3, seed=1), "b": _normal(64, seed=2)}
    nodes = [node("Conv", ["x", "w", "b"], ["a"], pads=[1] * 4), node("Relu", ["a"], ["y"])]

    def torch(t: Any, x: Any) -> Any:
        w, b = (t.from_numpy(v) for v in weights.values())
        return {"torch": lambda: t.relu(t.nn.functional.conv2d(x["x"], w, b, padding=1))}

    return Case(
        "3x3, 64 channels of 56x56, relu", _own("Conv2d", feed, weights, padding=1, activation="relu"), feed,
        _of(feed, nodes, weights), torch=torch,
    )  # fmt: skip


def _attention(kind: str, feed: Mapping[str, Any], bias: Any, torch: Any = None, **attributes: Any) -> Case:
    """One of the variants beside scores with a matrix of biases; ``bias`` [H, Q, K], -inf where a key is not seen."""
    size = feed["q"].shape[3]
    nodes = [
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]), node("MatMul", ["q", "kt"], ["s"]),
        node("Mul", ["s", "scale"], ["m"]), node("Add", ["m", "bias"], ["a"]), node("Softmax", ["a"], ["p"]),
        node("MatMul", ["p", "v"], ["y"]),
    ]  # fmt: skip
    constants = {"scale": F(size**-0.5), "bias": bias}
    return Case(
        "x".join(map(str, feed["q"].shape)), _own(kind, feed, **attributes), feed, _of(feed, nodes, constants),
        torch=torch,
    )  # fmt: skip


def _qkv(length: int = 1024, heads: int = 8, size: int = 64) -> dict[str, Any]:
    return {n: _normal(1, heads, length, size, seed=i) for i, n in enumerate("qkv")}


def _distance(length: int) -> Any:
    return (np.arange(length)[:, None] - np.arange(length)[None, :]).astype(F)


def attention() -> Case:
    """Causal."""
    feed = _qkv()
    case = _attention("Attention", feed, np.where(_distance(1024) >= 0, F(0), F(-np.inf)), causal=1)
    case.torch = lambda t, x: {
        "torch": lambda: t.nn.functional.scaled_dot_product_attention(*x.values(), is_causal=True)
    }
    case.peer = _of(feed, [node("Attention", ["q", "k", "v"], ["y"], is_causal=1)])
    return case


def alibi_attention() -> Case:
    """Biases that are never stored, beside biases that are."""
    slopes = 2.0 ** (-8 * (np.arange(8) + 1) / 8)
    far = _distance(1024)
    bias = np.where(far >= 0, -slopes[:, None, None] * far, -np.inf).astype(F)

    def torch(t: Any, x: Any) -> Any:
        mask = t.from_numpy(bias[None])
        return {"torch": lambda: t.nn.functional.scaled_dot_product_attention(*x.values(), attn_mask=mask)}

    return _attention("ALiBiAttention", _qkv(), bias, torch)


def sliding_window_attention() -> Case:
    """Keys outside the window are not looked at."""
    far = _distance(4096)
    bias = np.where((far >= 0) & (far <= 256), F(0), F(-np.inf))
    return _attention("SlidingWindowAttention", _qkv(4096, 2), bias, window=256)


def qkv_attention() -> Case:
    """Projection and attention as one operator, beside three products and attention node by node."""
    length, width, heads = 512, 768, 12
    feed = {"x": _normal(1, length, width)}
    w = _normal(3 * width, width, seed=1) * F(width**-0.5)
    size = width // heads
    nodes, constants = (
        [],
        {"scale": F(size**-0.5), "heads": np.array([0, 0, heads, size]), "whole": np.array([0, 0, -1])},
    )
    for i, n in enumerate("qkv"):
        constants[f"w{n}"] = np.ascontiguousarray(w[i * width : (i + 1) * width].T)
        nodes += [
            node("MatMul", ["x", f"w{n}"], [f"p{n}"]), node("Reshape", [f"p{n}", "heads"], [f"r{n}"]),
            node("Transpose", [f"r{n}"], [n], perm=[0, 2, 3, 1] if n == "k" else [0, 2, 1, 3]),
        ]  # fmt: skip
    nodes += [
        node("MatMul", ["q", "k"], ["s"]), node("Mul", ["s", "scale"], ["m"]), node("Softmax", ["m"], ["p"]),
        node("MatMul", ["p", "v"], ["o"]), node("Transpose", ["o"], ["t"], perm=[0, 2, 1, 3]),
        node("Reshape", ["t", "whole"], ["y"]),
    ]  # fmt: skip

    def torch(t: Any, x: Any) -> Any:
        weight = t.from_numpy(w)
        f = t.nn.functional

        def run() -> Any:
            parts = f.linear(x["x"], weight).reshape(1, length, 3, heads, size).permute(2, 0, 3, 1, 4)
            return f.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(1, length, width)

        return {"torch": run}

    own = _own("QKVAttention", feed, {"w": w}, heads=heads, groups=heads)
    return Case(f"{length}x{width}, {heads} heads", own, feed, _of(feed, nodes, constants), torch=torch)


def _deform(quantised: bool) -> Case:
    """3x3 taps of 64 channels of 56 by 56; the composition is nine GridSamples, a Concat and a product."""
    c, m, h, w = 64, 64, 56, 56
    rng = np.random.default_rng(3)
    scale = F(1 / 32)
    codes = rng.integers(-100, 101, (1, 18, h, w)).astype(np.int8)
    x, weight = _normal(1, c, h, w), _normal(m, c, 3, 3, seed=1)
    offset = (codes * scale).astype(F)
    feed = {"x": x, "o": codes if quantised else offset}
    if quantised:
        own = _of(feed, [node("QuantizedDeformConv2d", ["x", "w", "o", "s"], ["y"], domain="accord", padding=1)],
                  {"w": weight, "s": np.array([scale])})  # fmt: skip
    else:
        own = _of(feed, [node("DeformConv2d", ["x", "w", "o"], ["y"], domain="accord", padding=1)], {"w": weight})
    base = np.stack(np.meshgrid(np.arange(w), np.arange(h)), -1).astype(F)[None]
    constants: dict[str, Any] = {"to": F([2 / w, 2 / h]), "w": weight.transpose(0, 2, 3, 1).reshape(m, 9 * c, 1, 1)}
    nodes = []
    numbers = "o"
    if quantised:
        constants["s"] = scale
        nodes += [node("Cast", ["o"], ["oc"], to=1), node("Mul", ["oc", "s"], ["of"])]
        numbers = "of"
    for t in range(9):
        constants |= {f"lo{t}": np.array([2 * t]), f"hi{t}": np.array([2 * t + 2]), "one": np.array([1])}
        # offsets are (y, x), grids (x, y); 0 of a grid is the middle, -1 a border
        constants["flip"] = np.array([1, 0])
        constants[f"b{t}"] = (base + F([t % 3 - 1, t // 3 - 1]) + F(0.5)) * F([2 / w, 2 / h]) - F(1)
        nodes += [
            node("Slice", [numbers, f"lo{t}", f"hi{t}", "one"], [f"s{t}"]),
            node("Transpose", [f"s{t}"], [f"t{t}"], perm=[0, 2, 3, 1]),
            node("Gather", [f"t{t}", "flip"], [f"f{t}"], axis=3),
            node("Mul", [f"f{t}", "to"], [f"n{t}"]), node("Add", [f"n{t}", f"b{t}"], [f"g{t}"]),
            node("GridSample", ["x", f"g{t}"], [f"v{t}"], align_corners=0, mode="linear"),
        ]  # fmt: skip
    nodes += [node("Concat", [f"v{t}" for t in range(9)], ["all"], axis=1), node("Conv", ["all", "w"], ["y"])]

    def torch(t: Any, given: Any) -> Any:
        f = t.nn.functional
        kernel = t.from_numpy(np.ascontiguousarray(constants["w"]))
        grids = [t.from_numpy(constants[f"b{i}"]) for i in range(9)]
        to = t.from_numpy(constants["to"])

        def run() -> Any:
            real = given["o"].float() * float(scale) if quantised else given["o"]
            parts = []
            for i in range(9):
                grid = real[:, 2 * i : 2 * i + 2].permute(0, 2, 3, 1).flip(3) * to + grids[i]
                parts.append(f.grid_sample(given["x"], grid, align_corners=False))
            return f.conv2d(t.cat(parts, 1), kernel)

        ways = {"torch": run}
        try:
            from torchvision.ops import deform_conv2d
        except (ImportError, RuntimeError):
            return ways
        own_weight = t.from_numpy(weight)
        ways["torchvision"] = lambda: deform_conv2d(
            given["x"], given["o"].float() * float(scale) if quantised else given["o"], own_weight, padding=1
        )
        return ways

    return Case("3x3, 64 channels of 56x56", own, feed, _of(feed, nodes, constants), torch=torch)


def resize() -> Case:
    """Twice as large."""
    feed = {"x": _normal(1, 64, 80, 80)}
    nodes = [node("Resize", ["x", "", "", "to"], ["y"], mode="linear")]
    to = {"to": np.array([1, 64, 160, 160])}
    return Case(
        "64x80x80 to 160x160", _own("ResizeBilinear", feed, height=160, width=160), feed, _of(feed, nodes, to),
        torch=lambda t, x: {"torch": lambda: t.nn.functional.interpolate(x["x"], size=(160, 160), mode="bilinear")},
    )  # fmt: skip


def pixel_shuffle() -> Case:
    """As in super-resolution."""
    feed = {"x": _normal(1, 64, 128, 128)}
    nodes = [
        node("Reshape", ["x", "a"], ["b"]), node("Transpose", ["b"], ["c"], perm=[0, 1, 4, 2, 5, 3]),
        node("Reshape", ["c", "d"], ["y"]),
    ]  # fmt: skip
    shapes = {"a": np.array([1, 16, 2, 2, 128, 128]), "d": np.array([1, 16, 256, 256])}
    return Case(
        "64x128x128, factor 2", _own("PixelShuffle", feed, factor=2), feed, _of(feed, nodes, shapes),
        torch=lambda t, x: {"torch": lambda: t.pixel_shuffle(x["x"], 2).contiguous()},
        moved=2 * feed["x"].nbytes, copied="x",
    )  # fmt: skip


def _sparse(blocked: bool) -> Case:
    """90 % of 8 by 8 blocks, or of elements, are zero."""
    rows, width, columns = 1024, 1024, 256
    rng = np.random.default_rng(0)
    if blocked:
        mask = np.kron(rng.random((rows // 8, width // 8)) < 0.1, np.ones((8, 8), bool))
    else:
        mask = rng.random((rows, width)) < 0.1
    dense = np.where(mask, rng.standard_normal((rows, width)), 0).astype(F)
    parts = {
        "v": dense[mask],
        "c": np.nonzero(mask)[1].astype(np.int64),
        "s": np.concatenate([[0], np.cumsum(mask.sum(1))]).astype(np.int64),
    }
    feed = {"b": _normal(width, columns)}
    own = _of(feed, [node("SparseMatMul", ["v", "c", "s", "b"], ["y"], domain="accord")], parts)

    def torch(t: Any, x: Any) -> Any:
        a = t.sparse_csr_tensor(*(t.from_numpy(parts[n]) for n in ("s", "c", "v")), (rows, width))
        return {"torch CSR": lambda: a @ x["b"]}

    return Case(
        f"{rows}x{width} times {width}x{columns}, 90 % zero", own, feed,
        options={"CSR": {"disabled_rules": ["block-sparse"]}},
        peer=_of(feed, [node("MatMul", ["w", "b"], ["y"])], {"w": dense}), torch=torch,
    )  # fmt: skip


def lstm() -> Case:
    """A layer over a sequence, with its states."""
    length, batch, size, hidden = 64, 4, 128, 256
    feed = {"x": _normal(length, batch, size), "h": _normal(batch, hidden, seed=1), "c": _normal(batch, hidden, seed=2)}
    w, r, b = (_normal(*s, seed=5) * F(0.1) for s in ((4 * hidden, size), (4 * hidden, hidden), (4 * hidden,)))
    constants = {"w": w, "r": r, "b": b}
    own = _of(feed, [node("LSTM", [*feed, *constants], ["y", "y_h", "y_c"], domain="accord")], constants)
    nodes = [
        node("Unsqueeze", ["h", "zero"], ["h1"]), node("Unsqueeze", ["c", "zero"], ["c1"]),
        node("LSTM", ["x", "w", "r", "b", "", "h1", "c1"], ["z"], hidden_size=hidden),
        node("Squeeze", ["z", "one"], ["y"]),
    ]  # fmt: skip
    stored = {
        "w": w[None], "r": r[None], "b": np.concatenate([b, 0 * b])[None], "zero": np.array([0]), "one": np.array([1])
    }  # fmt: skip
    return Case(f"{length} steps, {batch}x{size} to {hidden}", own, feed, _of(feed, nodes, stored))


def _speech(seed: int = 0) -> tuple[Any, dict[str, Any]]:
    length, batch, classes, labels = 200, 8, 64, 40
    rng = np.random.default_rng(seed)
    given = {
        "t": rng.integers(1, classes, (batch, labels)),
        "l": np.full(batch, length),
        "n": np.full(batch, labels),
    }
    return _normal(length, batch, classes), given


def ctc_loss() -> Case:
    """Losses of a batch."""
    x, given = _speech()
    feed = {"x": x, **given}

    def torch(t: Any, y: Any) -> Any:
        f = t.nn.functional
        return {
            "torch": lambda: f.ctc_loss(f.log_softmax(y["x"], -1), y["t"], y["l"], y["n"], reduction="none"),
        }

    return Case("200 steps, batch 8, 64 classes, 40 labels", _own("CTCLoss", feed), feed, torch=torch)


def ctc_greedy_decode() -> Case:
    """The best path."""
    x, given = _speech()
    feed = {"x": x, "l": given["l"]}
    own = _of(feed, [node("CTCGreedyDecode", ["x", "l"], ["y", "counts"], domain="accord")])
    return Case("200 steps, batch 8, 64 classes", own, feed)


def ctc_beam_decode() -> Case:
    """The best of 16 prefixes."""
    x, given = _speech()
    feed = {"x": x[:, :1], "l": given["l"][:1]}
    own = _of(feed, [node("CTCBeamDecode", ["x", "l"], ["y", "counts", "scores"], domain="accord", beams=16)])
    return Case("200 steps, batch 1, 64 classes, 16 beams", own, feed)


CASES: dict[str, Callable[[], Case]] = {
    "ChannelShuffle": lambda: _channel_shuffle(8),
    "ChannelShuffle, large": lambda: _channel_shuffle(32),
    "LayerNorm": lambda: _layer_norm(512, 768),
    "LayerNorm, long": lambda: _layer_norm(256, 4096),
    "LayerNorm, large": lambda: _layer_norm(8192, 1024),
    "RMSNorm": rms_norm,
    "GroupNorm": group_norm,
    "Softmax": softmax,
    "GELU": gelu,
    "Linear": linear,
    "Conv2d": conv2d,
    "Attention": attention,
    "ALiBiAttention": alibi_attention,
    "SlidingWindowAttention": sliding_window_attention,
    "QKVAttention": qkv_attention,
    "DeformConv2d": lambda: _deform(False),
    "QuantizedDeformConv2d": lambda: _deform(True),
    "ResizeBilinear": resize,
    "PixelShuffle": pixel_shuffle,
    "SparseMatMul, blocks": lambda: _sparse(True),
    "SparseMatMul, scattered": lambda: _sparse(False),
    "LSTM": lstm,
    "CTCLoss": ctc_loss,
    "CTCGreedyDecode": ctc_greedy_decode,
    "CTCBeamDecode": ctc_beam_decode,
}
