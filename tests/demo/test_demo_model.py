"""The packaged demo model: its file, its pre- and post-processing, and how well it reads held-out lines."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from PIL import Image

import accord
import accord.demo.operators
from accord.demo.charset import BLANK, CHARACTERS, CLASSES, decode, encode
from accord.demo.evaluate import edit_distance, load_lines, measure, save_lines
from accord.demo.portable import DOMAIN, OPSET, with_shuffle_function
from accord.demo.reader import HEIGHT, MODEL, SAMPLE, ctc_decode, load_image, pad_batch, preprocess
from accord.demo.render import MAX_LENGTH, MIN_LENGTH, PILLOW_FONT, Line, random_line, random_text, split_of
from accord.errors import InputError

HELDOUT = Path(__file__).with_name("heldout.npz")
SAMPLE_TEXT = "Accord: 25 operators"
UNSEEN_FONTS = ("Inter-", "Anonymous Pro", "Caladea-", PILLOW_FONT)

Logits = Callable[[np.ndarray], np.ndarray]


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return onnx.load(MODEL)


@pytest.fixture(scope="module")
def lines() -> list[Line]:
    return load_lines(HELDOUT)


@pytest.fixture(scope="module")
def logits() -> Logits:
    """The model as a function of ``image``, run by Accord."""
    loaded = accord.load(MODEL)
    return lambda array: loaded(array)[0]


def _run(model: onnx.ModelProto) -> Logits:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    name = session.get_inputs()[0].name
    return lambda array: session.run(None, {name: array})[0]


# --- the files ----------------------------------------------------------------------------------------------


def test_the_files_stay_small():
    assert MODEL.stat().st_size <= 2_000_000
    assert HELDOUT.stat().st_size <= 2_500_000
    assert SAMPLE.stat().st_size <= 20_000


def test_the_graph_has_symbolic_batch_and_width(model):
    (image,) = model.graph.input
    (log_probs,) = model.graph.output
    assert (image.name, _shape(image)) == ("image", ["batch", 1, HEIGHT, "width"])
    assert (log_probs.name, _shape(log_probs)) == ("log_probs", ["time", "batch", CLASSES])
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": OPSET, DOMAIN: 1}
    onnx.checker.check_model(with_shuffle_function(model), full_check=True)


def _shape(value):
    return [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]


def test_the_graph_uses_the_operators_that_the_demo_is_about(model):
    operators = {node.op_type for node in model.graph.node}
    assert operators >= {"Conv", "BatchNormalization", "MaxPool", "LayerNormalization", "LSTM", "MatMul"}
    shuffles = [node for node in model.graph.node if node.domain == DOMAIN]
    assert [node.op_type for node in shuffles] == ["ChannelShuffle"] * 3
    assert all(helper.get_node_attr_value(node, "groups") == 4 for node in shuffles)
    assert not model.functions


def test_accord_and_onnx_runtime_agree(model, logits, lines):
    other = _run(with_shuffle_function(model))
    for width in (16, 33, 200):
        image = np.random.default_rng(width).random((2, 1, HEIGHT, width), np.float32)
        np.testing.assert_allclose(logits(image), other(image), rtol=1e-3, atol=1e-3)
    line = preprocess(lines[0].image)
    np.testing.assert_allclose(logits(line), other(line), rtol=1e-3, atol=1e-3)


def test_no_step_needs_the_reference():
    """The model's own operator is compiled with the rest."""
    plan = accord.load(MODEL).plan
    assert {step.placement.backend for step in plan.steps} <= {"cpu", "plan"}


@pytest.mark.parametrize("shape", [(2, 6, 2, 3), (0, 6, 2, 3), (2, 6, 0, 3), (1, 3, 5, 1)])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_the_composition_is_the_definition(shape, dtype):
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    info = [helper.make_tensor_value_info(name, element, [None] * 4) for name in ("x", "y")]
    node = helper.make_node("ChannelShuffle", ["x"], ["y"], domain=DOMAIN, groups=3)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    loaded = accord.load(
        helper.make_model(helper.make_graph([node], "shuffle", info[:1], info[1:]), opset_imports=opsets)
    )
    assert "reference" not in {step.placement.backend for step in loaded.plan.steps}
    x = np.random.default_rng(0).integers(-99, 99, shape).astype(dtype)
    np.testing.assert_array_equal(loaded(x)[0], accord.demo.operators.channel_shuffle(x, groups=3))


def test_the_shuffle_function_shuffles():
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4) for name in ("x", "y")]
    node = helper.make_node("ChannelShuffle", ["x"], ["y"], domain=DOMAIN, groups=3)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    graph = helper.make_graph([node], "shuffle", info[:1], info[1:])
    run = _run(with_shuffle_function(helper.make_model(graph, opset_imports=opsets, ir_version=10)))
    x = np.arange(2 * 6 * 2 * 3, dtype=np.float32).reshape(2, 6, 2, 3)
    np.testing.assert_array_equal(run(x), x[:, [0, 2, 4, 1, 3, 5]])


# --- accuracy -----------------------------------------------------------------------------------------------


def test_the_heldout_lines_were_held_out(lines):
    assert len(lines) == 500
    assert {split_of(line.text) for line in lines} == {"heldout"}
    assert len({line.text for line in lines}) >= 490
    assert set("".join(line.text for line in lines)) == set(CHARACTERS)
    assert sum(line.font.startswith(UNSEEN_FONTS) for line in lines) == 250


def test_it_reads_heldout_lines(logits, lines):
    accuracy = measure(logits, lines)
    assert accuracy.characters >= 0.98, accuracy.misread


def test_it_reads_fonts_that_it_was_not_trained_on(logits, lines):
    accuracy = measure(logits, [line for line in lines if line.font.startswith(UNSEEN_FONTS)])
    assert accuracy.characters >= 0.97, accuracy.misread


def test_a_batch_reads_like_its_lines(logits, lines):
    some = sorted(lines[:64], key=lambda line: line.image.shape[1])
    wrong = 0
    for start in range(0, len(some), 16):
        part = some[start : start + 16]
        read = ctc_decode(logits(pad_batch([line.image for line in part])))
        wrong += sum(edit_distance(line.text, text) for line, text in zip(part, read, strict=True))
    assert wrong <= 0.03 * sum(len(line.text) for line in some)


@pytest.mark.parametrize("width", [16, 17, 31, 160])
def test_every_width_gives_half_as_many_steps(logits, width):
    result = logits(np.full((2, 1, HEIGHT, width), 0.5, np.float32))
    assert result.shape == ((width + 1) // 2, 2, CLASSES)
    np.testing.assert_allclose(np.exp(result).sum(2), 1.0, rtol=1e-5)


def test_it_reads_the_sample(logits):
    assert ctc_decode(logits(preprocess(load_image(SAMPLE.with_suffix(".npy"))))) == [SAMPLE_TEXT]


def test_it_reads_the_sample_as_a_picture(logits):
    assert ctc_decode(logits(preprocess(load_image(SAMPLE)))) == [SAMPLE_TEXT]


# --- charset and decoding -----------------------------------------------------------------------------------


def test_the_charset_is_printable_ascii():
    assert len(CHARACTERS) == 95
    assert CLASSES == 96
    assert encode(" A~") == [1, 34, 95]
    assert decode(encode(CHARACTERS)) == CHARACTERS


def test_a_strange_character_is_named():
    with pytest.raises(InputError, match="'é'"):
        encode("café")


def _path(*classes: int) -> np.ndarray:
    return np.eye(CLASSES, dtype=np.float32)[list(classes)]


def test_ctc_merges_repeats_and_drops_blanks():
    a, b = encode("ab")
    paths = [_path(a, a, BLANK, a, b), _path(BLANK, b, b, b, BLANK), _path(*[BLANK] * 5)]
    assert ctc_decode(np.stack(paths, 1)) == ["aab", "b", ""]


def test_ctc_reads_no_steps_as_empty_texts():
    assert ctc_decode(np.zeros((0, 2, CLASSES), np.float32)) == ["", ""]


@pytest.mark.parametrize("array", [np.zeros((4, CLASSES), np.float32), np.zeros((4, 1, 95)), np.zeros((4, 1, 96), int)])
def test_ctc_refuses_what_is_no_logits(array):
    with pytest.raises(InputError, match=r"\[T, N, 96\]"):
        ctc_decode(array)


# --- preprocessing ------------------------------------------------------------------------------------------


def test_an_image_of_the_right_height_is_only_scaled():
    image = np.random.default_rng(0).integers(0, 256, (HEIGHT, 50), np.uint8)
    result = preprocess(image)
    assert (result.dtype, result.shape) == (np.float32, (1, 1, HEIGHT, 50))
    np.testing.assert_allclose(result[0, 0], image / 255.0, atol=1e-6)


def test_resizing_keeps_aspect_and_brightness():
    image = np.full((96, 300), 51, np.uint8)
    result = preprocess(image)
    assert result.shape == (1, 1, HEIGHT, 100)
    np.testing.assert_allclose(result, 0.2, atol=1e-6)


def test_shrinking_averages_all_pixels():
    image = np.zeros((128, 256), np.uint8)
    image[::2] = 255
    result = preprocess(image)[0, 0]
    np.testing.assert_allclose(result[2:-2], 0.5, atol=0.05)


def test_enlarging_interpolates_between_pixels():
    ramp = np.tile(np.arange(16, dtype=np.uint8) * 16, (16, 1))
    result = preprocess(ramp)[0, 0]
    assert result.shape == (HEIGHT, 32)
    expected = np.clip((np.arange(32) - 0.5) / 2, 0, 15) * 16 / 255
    np.testing.assert_allclose(result, np.tile(expected, (HEIGHT, 1)), atol=1e-6)


def test_colour_becomes_luma():
    image = np.zeros((HEIGHT, 40, 3), np.uint8)
    image[..., 1] = 255
    np.testing.assert_allclose(preprocess(image), 0.587, atol=1e-5)


def test_wide_margins_are_cut_and_narrow_ones_kept():
    image = np.full((200, 600), 255, np.uint8)
    image[90:110, 300:400] = 0
    ink = preprocess(image)[0, 0] < 0.5
    assert ink.any(1).sum() == HEIGHT // 2
    assert ink.shape == (HEIGHT, round((100 + 2 * 20) * HEIGHT / 40))


def test_margins_read_the_same_in_both_polarities():
    image = np.full((100, 300), 230, np.uint8)
    image[40:60, 100:200] = 20
    np.testing.assert_allclose(preprocess(255 - image), 1.0 - preprocess(image), atol=1e-5)


def test_a_narrow_image_is_padded_with_its_background():
    image = np.full((HEIGHT, 3), 255, np.uint8)
    image[8:24, 1] = 0
    result = preprocess(image)
    assert result.shape == (1, 1, HEIGHT, 16)
    np.testing.assert_array_equal(result[0, 0, :, 3:], 1.0)


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((HEIGHT, 20), np.float32),
        np.zeros((0, 20), np.uint8),
        np.zeros((HEIGHT, 20, 4), np.uint8),
        np.zeros(20, np.uint8),
    ],
)
def test_preprocess_refuses_what_is_no_image(image):
    with pytest.raises(InputError, match="uint8"):
        preprocess(image)


def test_preprocess_refuses_what_is_far_too_long():
    image = np.zeros((1, 9000), np.uint8)
    with pytest.raises(InputError, match="too long"):
        preprocess(image)


@pytest.mark.parametrize("lines", [[], [np.zeros((31, 5))], [np.zeros((HEIGHT, 0))]])
def test_a_batch_refuses_other_heights(lines):
    with pytest.raises(InputError, match="batch"):
        pad_batch(lines)


# --- files --------------------------------------------------------------------------------------------------


def test_npy_needs_no_pillow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    image = np.arange(60, dtype=np.uint8).reshape(6, 10)
    np.save(tmp_path / "line.npy", image)
    np.testing.assert_array_equal(load_image(tmp_path / "line.npy"), image)


def test_without_pillow_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InputError, match=r'pip install "accord\[demo\]"'):
        load_image(SAMPLE)


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00", b"no image"])
def test_damaged_files_are_input_errors(tmp_path, content):
    path = tmp_path / "line.npy"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"line\.npy"):
        load_image(path)


def test_a_size_beyond_the_file_takes_no_memory(tmp_path):
    path = tmp_path / "line.npy"
    np.save(path, np.zeros((10, 11), np.uint8))
    path.write_bytes(path.read_bytes().replace(b"(10, 11), }", b"(10, 1100000000000), }")[:200])
    with pytest.raises(InputError, match=r"line\.npy"):
        load_image(path)


def test_pickled_arrays_are_not_opened(tmp_path):
    path = tmp_path / "line.npy"
    np.save(path, np.array([{}], object), allow_pickle=True)
    with pytest.raises(InputError, match=r"line\.npy"):
        load_image(path)


def test_a_missing_file_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match=r"gone\.npy"):
        load_image(tmp_path / "gone.npy")


def test_pictures_of_every_mode(tmp_path):
    path = tmp_path / "line.png"
    shapes = {}
    for mode in ("1", "L", "RGB", "RGBA", "P", "LA", "I;16"):
        Image.new(mode, (20, 10)).save(path)
        shapes[mode] = load_image(path).shape
    assert shapes == {mode: (10, 20) if mode in {"1", "L"} else (10, 20, 3) for mode in shapes}
    Image.new("RGBA", (20, 10), (0, 0, 0, 0)).save(path)
    assert (load_image(path) == 255).all()
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(InputError, match=r"line\.png"):
        load_image(path)


def test_lines_survive_being_saved(tmp_path):
    rng = np.random.default_rng(3)
    lines = [Line(f"text {width}", rng.integers(0, 256, (HEIGHT, width), np.uint8), "font") for width in (3, 90, 17)]
    save_lines(tmp_path / "lines.npz", lines)
    for before, after in zip(lines, load_lines(tmp_path / "lines.npz"), strict=True):
        assert (before.text, before.font) == (after.text, after.font)
        np.testing.assert_array_equal(before.image, after.image)


# --- the data's source --------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_texts_keep_their_promises(split):
    rng = np.random.default_rng(5)
    texts = [random_text(rng, split) for _ in range(400)]
    for text in texts:
        assert MIN_LENGTH <= len(text) <= MAX_LENGTH
        assert text == " ".join(text.split())
        assert any(map(str.isalnum, text))
        assert split_of(text) == split
    assert set("".join(texts)) == set(CHARACTERS)


def test_a_seed_names_a_line():
    one, two, other = (random_line(np.random.default_rng(seed), [None], "train") for seed in (1, 1, 2))
    assert one.text == two.text != other.text
    np.testing.assert_array_equal(one.image, two.image)
    assert one.image.dtype == np.uint8
    assert one.image.shape[0] == HEIGHT


def test_edit_distance():
    pairs = {("", ""): 0, ("abc", ""): 3, ("", "ab"): 2, ("kitten", "sitting"): 3, ("ab", "ba"): 2}
    assert {pair: edit_distance(*pair) for pair in pairs} == pairs


def test_accuracy_counts_characters_and_lines():
    image = np.full((HEIGHT, 20), 255, np.uint8)
    lines = [Line("ab", image, "font"), Line("abcd", image, "font")]
    accuracy = measure(lambda _: _path(*encode("ab"))[:, None], lines)
    assert accuracy.characters == pytest.approx(1 - 2 / 6)
    assert accuracy.lines == 0.5
    assert accuracy.misread == (("abcd", "ab"),)
