"""accord.tune: choices between kernels are measured, remembered, found again, and never change what is computed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import accord
from accord.backends.protocol import NativeKernel
from accord.errors import AccordError, InputError
from accord.profile import tuning
from accord.runtime.model import Model
from accord.runtime.watch import WatchedRun
from accord.storage import Storage
from builders import model, node

F = np.float32
RNG = np.random.default_rng(11)
W = (RNG.standard_normal((32, 32, 3, 3)) / 16).astype(F)
B = RNG.standard_normal(32).astype(F)
X = RNG.standard_normal((1, 32, 20, 24)).astype(F)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("ACCORD_CACHE", str(folder))
    return folder


def favour(monkeypatch: pytest.MonkeyPatch, alternative: str) -> None:
    """Let the measurement find that ``alternative`` takes half the time of others."""

    def by_node(run: WatchedRun) -> dict[str, float]:
        kernels = {t.step.placement.node: t.step.kernel for t in run.times}
        return {n: 1.0 if getattr(k, "alternative", "") == alternative else 2.0 for n, k in kernels.items()}

    monkeypatch.setattr(tuning, "_by_node", by_node)


def content(batch: Any = 1, operator: str = "Relu") -> bytes:
    """Two convolutions, the first with an epilogue."""
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], pads=[1] * 4, name="first"),
        node(operator, ["c"], ["r"], name="between"),
        node("Conv", ["r", "w"], ["y"], pads=[1] * 4, strides=[2, 2], name="second"),
    ]
    return bytes(model(nodes, {"x": (F, [batch, *X.shape[1:]])}, ["y"], {"w": W, "b": B}).SerializeToString())


def taken(loaded: Model) -> list[str]:
    """The alternatives of the convolutions."""
    kernels = [s.kernel for s in loaded.plan.steps]
    return [k.alternative for k in kernels if isinstance(k, NativeKernel) and k.alternative]


def test_what_is_found_is_used_by_later_loads(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    data = content()
    by_rule = accord.load(data)
    assert taken(by_rule) == ["winograd", "staged"]
    favour(monkeypatch, "patches")
    found = accord.tune(data, {"x": X}, runs=3)
    assert [n.chosen for n in found.nodes] == ["patches", "patches"]
    assert [n.rule for n in found.nodes] == ["winograd", "staged"]
    assert found.choices == {n.node: "patches" for n in found.nodes}
    assert found.gain == 2.0
    tuned = accord.load(data)
    assert taken(tuned) == ["patches", "patches"]
    assert dict(tuned.options.choices or ()) == found.choices
    np.testing.assert_allclose(tuned(X)[0], by_rule(X)[0], rtol=1e-4, atol=1e-4)
    # the plan that is stored now has them too, and the one by rule is still there
    again = accord.load(data)
    assert list(again.seconds) == ["stored"]
    assert taken(again) == ["patches", "patches"]
    assert taken(accord.load(data, choices={})) == ["winograd", "staged"]
    # without any stored plan
    for entry in (cache / "plans").iterdir():
        entry.unlink()
    fresh = accord.load(data)
    assert "stored" not in fresh.seconds
    assert taken(fresh) == ["patches", "patches"]
    # tuned again: a new entry in place of the old one
    favour(monkeypatch, "winograd")
    assert accord.tune(data, {"x": X}, runs=3).choices == {}
    assert taken(accord.load(data)) == ["winograd", "staged"]


def test_another_process_and_a_session_find_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content())
    favour(monkeypatch, "patches")
    accord.tune(path, {"x": X}, runs=2)
    program = f"""
import accord
m = accord.load({str(path)!r})
print([s.kernel.alternative for s in m.plan.steps if getattr(s.kernel, "alternative", "")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.strip() == "['patches', 'patches']"
    by_rule = accord.load(path, choices={})(X)[0]
    np.testing.assert_allclose(accord.InferenceSession(str(path)).run(None, {"x": X})[0], by_rule, rtol=1e-4, atol=1e-4)


def test_nobody_else_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    favour(monkeypatch, "patches")
    accord.tune(content(), {"x": X}, runs=2)
    assert taken(accord.load(content(operator="Abs"))) == ["winograd", "staged"]
    assert taken(accord.load(content(), threads=1)) == ["winograd", "staged"]
    assert taken(accord.load(content(), level=2)) == ["winograd", "staged"]
    monkeypatch.setattr("accord.runtime.stored.code_digest", lambda: "another version")
    assert taken(accord.load(content())) == ["winograd", "staged"]


def test_sizes_that_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    data = content("N")
    favour(monkeypatch, "patches")
    accord.tune(data, {"x": X}, runs=2)
    tuned = accord.load(data)
    assert taken(tuned) == ["patches", "patches"]
    many = RNG.standard_normal((3, *X.shape[1:])).astype(F)
    np.testing.assert_allclose(tuned(many)[0], accord.load(data, choices={})(many)[0], rtol=1e-4, atol=1e-4)


def test_nodes_of_bodies() -> None:
    """The times of all passes of a loop count for one node."""
    from onnx import TensorProto, helper

    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [node("Conv", ["h", "w"], ["n"], pads=[1] * 4, name="inner"), node("Identity", ["c"], ["d"])],
        "body",
        [info("i", TensorProto.INT64, []), info("c", TensorProto.BOOL, []), info("h", TensorProto.FLOAT, X.shape)],
        [info("d", TensorProto.BOOL, []), info("n", TensorProto.FLOAT, X.shape)],
    )
    outer = node("Loop", ["trips", "", "x"], ["y"], body=body)
    proto = model([outer], {"x": (F, X.shape)}, ["y"], {"w": W, "trips": np.array(3, np.int64)})
    found = accord.tune(proto.SerializeToString(), {"x": X}, runs=2)
    (inner,) = found.nodes
    assert set(inner.seconds) == {"winograd", "staged", "patches"}
    assert all(s > 0 for s in inner.seconds.values())


@pytest.mark.parametrize(
    ("rule", "other", "chosen"),
    [
        ([10.0] * 8, [9.0] * 8, "other"),
        ([10.0] * 8, [9.9] * 8, "rule"),  # a gain of 1 %
        ([10.0] * 8, [10.5] * 8, "rule"),
        ([10.0] * 8, [5.0, 5.0, 5.0, 5.0, 5.0, 12.0, 12.0, 12.0], "rule"),  # only in five turns of eight
        ([10.0, 20.0, 10.0, 20.0] * 2, [9.0, 18.0, 9.0, 18.0] * 2, "other"),  # what disturbs meets both
    ],
)
def test_only_what_is_more_than_noise_counts(rule: Sequence[float], other: Sequence[float], chosen: str) -> None:
    offer = SimpleNamespace(op="Conv", alternatives=("rule", "other"))
    found = tuning._choice("n", offer, {"rule": rule, "other": other})  # type: ignore[arg-type]
    assert found.chosen == chosen


def test_a_model_without_alternatives() -> None:
    data = model([node("Exp", ["x"], ["y"])], {"x": (F, [4])}, ["y"]).SerializeToString()
    assert accord.tune(data, {"x": np.ones(4, F)}).nodes == ()


def test_without_a_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ACCORD_CACHE", "off")
    with pytest.raises(AccordError, match="nothing could be remembered: the cache is off"):
        accord.tune(content(), {"x": X})
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("ACCORD_CACHE", str(tmp_path / "file"))
    with pytest.raises(AccordError, match="could not be remembered"):
        accord.tune(content(), {"x": X}, runs=1)


def test_wrong_use() -> None:
    proto: Any = model([node("Exp", ["x"], ["y"])], {"x": (F, [4])}, ["y"])
    with pytest.raises(AccordError, match="the same model"):
        accord.tune(proto, {"x": np.ones(4, F)})
    with pytest.raises(InputError):
        accord.tune(content(), {"image": X})
    with pytest.raises(AccordError, match="at least one run"):
        accord.tune(content(), {"x": X}, runs=0)


def test_choices_that_do_not_exist() -> None:
    with pytest.raises(AccordError, match="a node that the plan does not have") as missing:
        accord.load(content(), choices={"secnd": "patches"})
    assert "second" in str(missing.value.expected)
    with pytest.raises(AccordError, match="no such alternative") as unknown:
        accord.load(content(), choices={"second": "winograd"})
    assert unknown.value.expected == "staged or patches"
    assert taken(accord.load(content(), choices={"second": "patches"})) == ["winograd", "patches"]


@pytest.mark.parametrize("damage", ["bytes", "not json", "another form", "others may write"])
def test_damaged_entries_are_ignored(damage: str, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    favour(monkeypatch, "patches")
    accord.tune(content(), {"x": X}, runs=2)
    assert taken(accord.load(content())) == ["patches", "patches"]
    (entry,) = (cache / "tuning").iterdir()
    if damage == "bytes":
        whole = bytearray(entry.read_bytes())
        whole[-1] ^= 1
        entry.write_bytes(whole)
    elif damage == "others may write":
        entry.chmod(0o666)
    else:
        text = "{" if damage == "not json" else json.dumps({"second": 1})
        Storage("tuning").write(entry.stem, [text.encode()])
    assert taken(accord.load(content())) == ["winograd", "staged"]
