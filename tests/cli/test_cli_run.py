"""accord run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli_harness import IMAGE, MIXED, NAN, call, data, write

import accord
from builders import model as graph
from builders import node


def test_tables(tmp_path: Path) -> None:
    result = call("run", write(tmp_path), "--shape", "image=2x3x4x5")
    assert result.exit_code == 0
    assert "model.onnx: " in result.stdout
    assert "[2, 4, 4, 5]" in result.stdout
    assert "fall-back" in result.stdout
    assert result.stderr == ""


def test_numbers_are_those_of_the_model(tmp_path: Path) -> None:
    model = write(tmp_path)
    x = np.random.default_rng(1).random((1, 3, 2, 2), np.float32)
    np.save(tmp_path / "x.npy", x)
    found = data("run", model, "--input", f"image={tmp_path / 'x.npy'}", "--output", str(tmp_path / "out"))
    y, c = accord.load(model)(x)
    assert [o["name"] for o in found["outputs"]] == ["y", "c"]
    first = found["outputs"][0]
    assert (first["dtype"], first["shape"], first["nan"]) == ("float32", [1, 4, 2, 2], 0)
    np.testing.assert_allclose([first["min"], first["mean"], first["max"]], [y.min(), y.mean(), y.max()], rtol=1e-5)
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "y.npy"), y)
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "c.npy"), c)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["c.npy", "y.npy"]
    assert found["inputs"] == [{"name": "image", "dtype": "float32", "shape": [1, 3, 2, 2], "from": "x.npy"}]
    assert found["seconds"]["run"] > 0


def test_open_sizes_are_taken_and_said(tmp_path: Path) -> None:
    result = call("run", write(tmp_path))
    assert result.exit_code == 0
    assert "[1, 3, 224, 224]" in result.stdout
    for line in ("size 'N' is not given: 1 taken", "size 'H' is not given: 224 taken", "--shape W=..."):
        assert line in result.stderr
    assert data("run", write(tmp_path), "--shape", "H=2", "--shape", "W=3", "--shape", "N=4")["inputs"][0]["shape"] == [
        4,
        3,
        2,
        3,
    ]


def test_seeds(tmp_path: Path) -> None:
    model = write(tmp_path)
    shape = ["--shape", "image=1x3x4x4"]
    a, b, c = (data("run", model, *shape, "--seed", s)["outputs"][0]["mean"] for s in ("1", "1", "2"))
    assert a == b != c


def test_every_kind_of_input_is_made_up(tmp_path: Path) -> None:
    found = data("run", write(tmp_path, MIXED), "--shape", "N=50", "--shape", "list=3", "--output", str(tmp_path / "o"))
    outputs = {o["name"]: o for o in found["outputs"]}
    assert (outputs["t"]["dtype"], outputs["t"]["shape"], outputs["t"]["min"]) == ("string", [50], None)
    assert outputs["b"]["max"] > 100
    assert (outputs["i"]["min"], outputs["i"]["max"]) == (-1, 0)
    assert outputs["s[0]"]["shape"] == outputs["s[1]"]["shape"] == [3]
    assert set(np.load(tmp_path / "o" / "t.npy")) <= {"A", "B", "C"}
    assert (tmp_path / "o" / "s_0_.npy").exists()


def test_nan_is_counted(tmp_path: Path) -> None:
    result = data("run", write(tmp_path, NAN), "--input", "x=[-1, 1, -2, 1]")
    y, total = result["outputs"]
    assert (y["nan"], y["min"], y["max"]) == (2, 0.0, 0.0)
    assert (total["nan"], total["mean"]) == (1, None)


def test_optional_inputs_are_left_out_unless_given(tmp_path: Path) -> None:
    model = write(tmp_path)
    shape = ["--shape", "image=1x3x4x4"]
    assert data("run", model, *shape)["outputs"][1]["max"] == 2
    assert data("run", model, *shape, "--input", "k=[9]")["outputs"][1]["max"] == 9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "image"], "write NAME=FILE.npy"),
        (["--input", "imge=x.npy"], "no input 'imge'. Did you mean 'image'?"),
        (["--input", "image=missing.npy"], "there is no such file"),
        (["--input", "image={folder}"], "this is a folder"),
        (["--input", "image={model}"], "not a .npy file"),
        (["--input", "image={broken}"], "--input image="),
        (["--input", 'image=["a"]'], "--input image="),
        (["--shape", "image"], "write NAME=1x3x224x224"),
        (["--shape", "image=1x3xa"], "sizes are integers"),
        (["--shape", "image=1x-3x2x2"], "negative"),
        (["--shape", "image=1x3x4"], "does not fit the input's shape N × 3 × H × W"),
        (["--shape", "image=1x4x4x4"], "does not fit"),
        (["--shape", "immage=1x3x4x4"], "Did you mean 'image'?"),
        (["--shape", "H=2x3"], "no input or size 'H'"),
        (["--output", "{model}"], "is a file"),
        (["--output", "{model}/below"], "--output"),
    ],
)
def test_wrong_use(arguments: list[str], message: str, tmp_path: Path) -> None:
    model = write(tmp_path)
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY\x01\x00rest")
    places = {"model": model, "folder": str(tmp_path), "broken": str(tmp_path / "broken.npy")}
    result = call("run", model, *(a.format(**places) for a in arguments))
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_an_input_without_rank_needs_a_shape(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["":17]> g (float x) => (float y) { y = Neg(x) }'
    import onnx

    path = tmp_path / "m.onnx"
    model = onnx.parser.parse_model(text)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    path.write_bytes(model.SerializeToString())
    result = call("run", str(path))
    assert result.exit_code == 2
    assert "give --shape x=" in result.stderr
    assert data("run", str(path), "--shape", "x=2x3")["outputs"][0]["shape"] == [2, 3]


def test_strict(tmp_path: Path) -> None:
    result = call("run", write(tmp_path, MIXED), "--shape", "N=2", "--shape", "list=2", "--strict")
    assert result.exit_code == 1
    assert "strict mode" in result.stderr
    assert (
        data("run", write(tmp_path, MIXED), "--shape", "N=2", "--shape", "list=2")["fallbacks"][
            "ai.onnx.ml::LabelEncoder"
        ]
        == 1
    )


def test_levels_agree(tmp_path: Path) -> None:
    model = write(tmp_path, IMAGE)
    means = [data("run", model, "--shape", "image=1x3x4x4", "--level", level)["outputs"][0]["mean"] for level in "0123"]
    np.testing.assert_allclose(means, means[0], rtol=1e-6)


def test_sizes_that_are_taken_fit_each_other(tmp_path: Path) -> None:
    """A model for lines of text takes images of one height only."""
    nodes = [node("AveragePool", ["x"], ["a"], kernel_shape=[3, 2], strides=[3, 2]), node("Add", ["a", "c"], ["y"])]
    proto = graph(nodes, {"x": (np.float32, ["n", 3, "h", "w"])}, ["y"], {"c": np.ones((1, 3, 16, 1), np.float32)})
    path = tmp_path / "line.onnx"
    path.write_bytes(proto.SerializeToString())
    found = data("run", str(path))
    assert found["outputs"][0]["shape"] == [1, 3, 16, 24]
    assert call("explain", str(path)).exit_code == 0


@pytest.mark.parametrize(
    ("option", "text", "what"),
    [
        ("--shape", "image=1xq", "sizes are integers"),
        ("--warmup", "image=1xq", "sizes are integers"),
        ("--warmup", "image=1x3", "does not fit"),
        ("--warmup", "picture=1", "no input or size"),
        ("--warmup", "H=-1", "negative"),
    ],
)
def test_what_is_wrong_with_sizes_names_the_option(tmp_path, option, text, what):
    result = call("run", write(tmp_path), option, text)
    assert result.exit_code == 2
    assert f"{option} {text}" in result.output
    assert what in result.output
