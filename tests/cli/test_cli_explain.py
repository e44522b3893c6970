"""accord explain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from cli_harness import MIXED, call, data, write

from accord.runtime.pipeline import STAGES
from builders import model as graph
from builders import node

onnxruntime.set_default_logger_severity(4)


def test_stages_rewrites_placement_memory(tmp_path: Path) -> None:
    model = write(tmp_path)
    found = data("explain", model, "--shape", "image=1x3x8x8")
    assert [s["stage"] for s in found["stages"]] == [*STAGES, "planned"]
    counts = {s["stage"]: s["nodes"] for s in found["stages"]}
    assert counts["loaded"] == 5
    assert counts[STAGES[-1]] < 5
    assert "remove-identity" in {p["rule"] for p in found["patches"]}
    assert sum(found["backends"].values()) >= 1
    memory = found["memory"]
    assert memory["shapes"] == {"image": [1, 3, 8, 8]}
    assert memory["unshared"] > 0
    assert memory["constants"] >= 4 * 12 + 4 * 4
    assert memory["peak"] == memory["arena"] + memory["constants"] and memory["staging"] == 0


def test_text(tmp_path: Path) -> None:
    result = call("explain", write(tmp_path), "--shape", "image=1x3x8x8")
    assert result.exit_code == 0
    for part in ("Stages", "Patches", "Placement", "Memory for image 1×3×8×8", "planned arena", "fall-back"):
        assert part in result.stdout


def test_levels_and_rules(tmp_path: Path) -> None:
    model = write(tmp_path)
    shape = ["--shape", "image=1x3x8x8"]
    assert data("explain", model, *shape, "--level", "0")["patches"] == []
    disabled = data("explain", model, *shape, "--disable-rule", "remove-identity")
    assert "remove-identity" not in {p["rule"] for p in disabled["patches"]}
    one = data("explain", model, *shape, "--rule", "remove-identity")
    assert {p["rule"] for p in one["patches"]} == {"remove-identity"}
    text = call("explain", model, *shape, "--rule", "remove-identity").stdout
    assert "Patches of remove-identity" in text
    assert "Where remove-identity did not fire" in text


def test_dumps_are_valid_and_compute_the_same(tmp_path: Path) -> None:
    model = write(tmp_path)
    found = data("explain", model, "--shape", "image=1x3x8x8", "--dump", str(tmp_path / "stages"))
    names = [f"{i:02d}-{stage}.onnx" for i, stage in enumerate(STAGES)]
    assert sorted(p.name for p in (tmp_path / "stages").iterdir()) == names
    assert found["dumped"] == [str(tmp_path / "stages" / n) for n in names]
    x = np.random.default_rng(0).random((1, 3, 8, 8), np.float32)
    expected = onnxruntime.InferenceSession(model).run(None, {"image": x})
    for name in names:
        stage = onnx.load(tmp_path / "stages" / name)
        onnx.checker.check_model(stage, full_check=True)
        outputs = onnxruntime.InferenceSession(stage.SerializeToString()).run(None, {"image": x})
        for a, b in zip(outputs, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)
    shapes = {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in onnx.load(tmp_path / "stages" / names[1]).graph.value_info
    }
    assert shapes["a"][:2] == ["N", 4]


def test_fall_backs_are_listed_with_reasons(tmp_path: Path) -> None:
    found = data("explain", write(tmp_path, MIXED), "--shape", "N=2", "--shape", "list=2")
    text = {f["op"]: f["reason"] for f in found["fallbacks"]}
    assert text["ai.onnx.ml::LabelEncoder"].startswith("cpu: ")
    assert "LabelEncoder ×1" in call("explain", write(tmp_path, MIXED)).stdout


def test_memory_of_open_shapes(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["":17]> g (float x) => (float y) { y = Neg(x) }'
    model = onnx.parser.parse_model(text)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    assert data("explain", str(path))["memory"] is None
    assert "--shape gives them" in call("explain", str(path)).stdout


def test_dump_in_a_bad_place(tmp_path: Path) -> None:
    model = write(tmp_path)
    result = call("explain", model, "--dump", f"{model}/below")
    assert result.exit_code == 2
    assert "--dump" in result.stderr


def test_precision(tmp_path: Path) -> None:
    model = write(tmp_path)
    shape = ["--shape", "image=1x3x8x8"]
    assert data("explain", model, *shape)["precision"] == []
    found = data("explain", model, *shape, "--precision", "bfloat16")["precision"]
    assert found
    assert {p["precision"] for p in found} == {"bfloat16"}
    text = call("explain", model, *shape, "--precision", "bfloat16").stdout
    assert "Products of rounded operands, as asked for" in text
    assert found[0]["node"] in text


def test_copies_are_explained(tmp_path: Path) -> None:
    """A convolution writes channels last; the caller gets rows."""
    weights = {"w": np.ones((16, 8, 3, 3), np.float32)}
    proto = graph([node("Conv", ["x", "w"], ["y"])], {"x": (np.float32, [1, 8, 6, 6])}, ["y"], weights)
    path = tmp_path / "conv.onnx"
    path.write_bytes(proto.SerializeToString())
    (copy,) = data("explain", str(path))["copies"]
    (remark,) = data("explain", str(path))["remarks"]
    assert remark["op"] == "Conv"
    assert remark["nodes"] == ["y"]
    assert remark["remark"].startswith(("direct", "Winograd"))
    assert remark["remark"].split(":")[0] in call("explain", str(path)).stdout
    assert copy["because"] == "the caller reads 'y' row by row, it lies channels last"
    assert "the caller reads 'y'" in call("explain", str(path)).stdout
    proto = graph([node("Abs", ["x"], ["y"])], {"x": (np.float32, [4])}, ["y"])
    path.write_bytes(proto.SerializeToString())
    assert data("explain", str(path))["copies"] == []
    assert "no copy into another order of axes" in call("explain", str(path)).stdout


def test_streams_and_events(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "x"], ["a"], name="long"),
        node("MatMul", ["a", "x"], ["b"], name="longer"),
        node("MatMul", ["z", "z"], ["c"], name="branch"),
        node("Add", ["b", "c"], ["y"], name="join"),
    ]
    shapes = dict.fromkeys(("x", "z"), (np.float32, (2048, 2048)))
    path = tmp_path / "branches.onnx"
    onnx.save(graph(nodes, shapes, ["y"]), path)
    found = data("explain", str(path), "--device", "null", "--level", "0")["streams"]
    assert [(s["step"], s["stream"], s["waits_for"]) for s in found] == [
        ("long", 0, []),
        ("longer", 0, []),
        ("branch", 1, []),
        ("join", 0, ["branch"]),
    ]
    text = call("explain", str(path), "--device", "null", "--level", "0").stdout
    assert "waits for an event of" in text
    assert data("explain", str(path))["streams"] == []
