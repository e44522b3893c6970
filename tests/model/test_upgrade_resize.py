"""Upsample, and Resize before 13."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from upgrade_harness import Array, check, floats, model, node, operators, run, upgrade

from accord.errors import UnsupportedError

SHAPES = ["known", "ranks", "nothing"]


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_upsample_1(mode: str) -> None:
    x = floats(1, 2, 3, 4)
    proto = model(1, [node("Upsample", "x", height_scale=2.0, width_scale=3.0, mode=mode)], {"x": x})
    same = model(7, [node("Upsample", "x", scales=[1.0, 1.0, 2.0, 3.0], mode=mode.replace("bi", ""))], {"x": x})
    check(proto, {"x": x}, run(same, {"x": x}))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [(1.0, 1.0, 2.0, 2.0), (1.0, 1.0, 1.7, 2.4)])
@pytest.mark.parametrize("opset", [7, 8, 9])
def test_upsample(opset: int, scales: tuple[float, ...], mode: str) -> None:
    feeds = {"x": floats(1, 2, 3, 4)}
    if opset < 9:
        nodes = [node("Upsample", "x", scales=scales, mode=mode)]
    else:
        feeds["s"] = np.array(scales, dtype=np.float32)
        nodes = [node("Upsample", "xs", mode=mode)]
    assert operators(check(model(opset, nodes, feeds), feeds)) == ["Resize"]


@settings(max_examples=40, deadline=None)
@given(
    scales=st.lists(st.sampled_from([0.3, 0.5, 0.6, 0.75, 1.0, 1.3, 2.0, 2.5]), min_size=2, max_size=2),
    mode=st.sampled_from(["nearest", "linear"]),
    constant=st.booleans(),
    shapes=st.sampled_from(SHAPES),
)
def test_resize_10(scales: list[float], mode: str, constant: bool, shapes: str) -> None:
    parameters = {"s": np.array([1, 1, *scales], dtype=np.float32)}
    feeds = {"x": floats(1, 2, 5, 6)} | ({} if constant else parameters)
    proto = model(
        10, [node("Resize", "xs", mode=mode)], feeds, constants=parameters if constant else None, shapes=shapes
    )
    new = check(proto, feeds)
    if constant and (min(scales) >= 1 or max(scales) <= 1):
        assert operators(new) == ["Resize"]


def test_resize_10_shrinks_to_the_element_after() -> None:
    x = np.array([[[[1, 2, 3, 4], [5, 6, 7, 8]]]], dtype=np.float32)
    scales = {"s": np.array([1, 1, 0.6, 0.6], dtype=np.float32)}
    check(model(10, [node("Resize", "xs", mode="nearest")], {"x": x}, constants=scales), {"x": x}, [x[:, :, :1, ::2]])


MODES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize"]


@pytest.mark.parametrize("coordinates", MODES)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("by", ["scales", "sizes"])
def test_resize_11(mode: str, coordinates: str, by: str) -> None:
    x = floats(1, 1, 4, 5)
    constants = {
        "roi": np.array([0, 0, 0.2, 0.1, 1, 1, 0.8, 0.9] if coordinates == MODES[-1] else [], dtype=np.float32),
        "scales": np.array([1, 1, 2, 1.5] if by == "scales" else [], dtype=np.float32),
        "sizes": np.array([1, 1, 7, 3], dtype=np.int64),
    }
    inputs = ["x", "roi", "scales", *(["sizes"] if by == "sizes" else [])]
    nodes = [node("Resize", inputs, mode=mode, coordinate_transformation_mode=coordinates)]
    new = check(model(11, nodes, {"x": x}, constants=constants), {"x": x}, rtol=1e-4, atol=1e-5)
    assert [bool(i) for i in new.graph.node[0].input][1:] == [
        coordinates == MODES[-1],
        by == "scales",
        *([True] if by == "sizes" else []),
    ]


def test_sizes_go_before_scales_that_a_run_gives() -> None:
    """The text lets both be given only where the scales are empty."""
    feeds = {"x": floats(1, 1, 4, 5), "roi": np.zeros(0, np.float32), "scales": np.zeros(0, np.float32)}
    sizes = {"sizes": np.array([1, 1, 7, 3])}
    new = check(model(11, [node("Resize", [*feeds, *sizes])], feeds, constants=sizes, shapes="ranks"), feeds)
    assert list(new.graph.node[0].input) == ["x", "", "", "sizes"]


@pytest.mark.parametrize("opset", [13, 18, 24])
def test_empty_inputs_become_absent(opset: int) -> None:
    x, empty = floats(1, 1, 4, 4), np.array([], dtype=np.float32)
    constants = {"roi": empty, "scales": empty, "sizes": np.array([1, 1, 8, 8])}
    new = check(model(opset, [node("Resize", ["x", *constants])], {"x": x}, constants=constants), {"x": x})
    assert list(new.graph.node[0].input) == ["x", "", "", "sizes"]


# tf_half_pixel_for_nn -----------------------------------------------------------------------------------------------


def weights(mode: str, t: float, a: float = -0.75) -> dict[int, float]:
    if mode == "linear":
        return {0: 1 - t, 1: t}

    def keys(d: float) -> float:
        if d <= 1:
            return (a + 2) * d**3 - (a + 3) * d**2 + 1
        return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a

    return {-1: keys(1 + t), 0: keys(t), 1: keys(1 - t), 2: keys(2 - t)}


ROUND = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda v: np.ceil(v - 0.5),
    "round_prefer_ceil": lambda v: np.floor(v + 0.5),
}


def expected_axis(x: Array, axis: int, scale: float, size: int, mode: str, rounding: str, exclude: bool) -> Array:
    length = x.shape[axis]
    columns = []
    for i in range(size):
        position = (i + 0.5) / scale
        if mode == "nearest":
            columns.append(np.take(x, int(np.clip(ROUND[rounding](position), 0, length - 1)), axis))
            continue
        first = int(np.floor(position))
        taps = {first + k: w for k, w in weights(mode, position - first).items()}
        if exclude:
            taps = {k: w for k, w in taps.items() if 0 <= k < length}
            total = sum(taps.values())
            taps = {k: w / total for k, w in taps.items()}
        columns.append(sum(np.take(x, min(max(k, 0), length - 1), axis) * w for k, w in taps.items()))
    return np.stack(columns, axis).astype(np.float32)


@pytest.mark.parametrize("by", ["scales", "sizes", "given scales", "given sizes"])
@pytest.mark.parametrize("shapes", ["known", "ranks"])
@pytest.mark.parametrize(
    ("mode", "attributes"),
    [
        *(("nearest", {"nearest_mode": r}) for r in ROUND),
        ("linear", {}),
        ("cubic", {}),
        ("cubic", {"exclude_outside": 1}),
    ],
)
def test_half_pixel_for_nearest(mode: str, attributes: dict[str, Any], by: str, shapes: str) -> None:
    x = floats(1, 2, 4, 6)
    sizes = [1, 2, 8, 3] if by.endswith("sizes") else [1, 2, 6, 3]
    scales = [1.0, 1.0, sizes[2] / 4, sizes[3] / 6]
    parameters = {
        "roi": np.array([], dtype=np.float32),
        "scales": np.array(scales if by.endswith("scales") else [], dtype=np.float32),
    }
    if by.endswith("sizes"):
        parameters["sizes"] = np.array(sizes)
    names = ["x", *parameters]
    feeds = {"x": x}
    if by.startswith("given"):
        feeds[names[-1]] = parameters.pop(names[-1])
    nodes = [
        node("Resize", names, mode=mode, coordinate_transformation_mode="tf_half_pixel_for_nn", **attributes),
    ]
    expected = x
    for axis in (2, 3):
        rounding, exclude = attributes.get("nearest_mode", ""), bool(attributes.get("exclude_outside"))
        expected = expected_axis(expected, axis, scales[axis], sizes[axis], mode, rounding, exclude)
    proto = model(11, nodes, feeds, constants=parameters, shapes=shapes)
    new = check(proto, feeds, [expected], rtol=1e-4, atol=1e-5)
    if mode == "nearest" and rounding == "floor" and by == "scales":
        assert operators(new) == ["Resize"]


def test_half_pixel_for_nearest_needs_the_rank() -> None:
    feeds = {"x": floats(1, 1, 4, 4), "roi": np.zeros(0, np.float32), "s": np.ones(4, np.float32)}
    nodes = [node("Resize", ["x", "roi", "s"], mode="linear", coordinate_transformation_mode="tf_half_pixel_for_nn")]
    with pytest.raises(UnsupportedError, match="rank"):
        upgrade(model(11, nodes, feeds, shapes="nothing"))
