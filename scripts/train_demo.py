"""Train, export and measure the demo model, a small text-line reader.

    python scripts/train_demo.py train   --work build/demo      # about 50 minutes on one CPU core
    python scripts/train_demo.py export  --work build/demo      # writes src/accord/demo/reader.onnx
    python scripts/train_demo.py heldout                        # writes tests/demo/heldout.npz
    python scripts/train_demo.py sample                         # writes src/accord/demo/sample.png and .npy
    python scripts/train_demo.py measure                        # accuracy of reader.onnx on heldout.npz

The packaged weights come from ``train`` and ``export`` with the defaults below. Training data is drawn as it is
needed by ``accord.demo.render``: line ``i`` is a function of ``(seed, i)``. Held-out lines have texts that
``split_of`` keeps out of training, another seed, and for one half fonts that training never sees.

Needs, beside Accord: ``pip install torch==2.13.0 pillow onnxruntime`` (a CPU build of torch is enough) and the
fonts of these Debian packages: fonts-dejavu fonts-liberation fonts-freefont-ttf fonts-roboto-unhinted
fonts-open-sans fonts-lato fonts-inconsolata fonts-hack fonts-firacode fonts-crosextra-carlito
fonts-linuxlibertine fonts-sil-gentium-basic fonts-cabin fonts-courier-prime fonts-roboto-slab
fonts-jetbrains-mono fonts-cantarell fonts-karla; for ``heldout`` also fonts-inter fonts-anonymous-pro
fonts-crosextra-caladea.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from accord.demo.charset import BLANK, CLASSES, encode
from accord.demo.evaluate import Logits, load_lines, measure, save_lines
from accord.demo.portable import DOMAIN, OPSET, with_shuffle_function
from accord.demo.reader import HEIGHT, MODEL, SAMPLE, pad_batch
from accord.demo.render import PILLOW_FONT, load_font, random_line

ROOT = Path(__file__).resolve().parent.parent
HELDOUT = ROOT / "tests" / "demo" / "heldout.npz"

SEED = 20260
HELDOUT_SEED = 77003
HELDOUT_LINES = 500
SAMPLE_TEXT = "Accord: 25 operators"
STEPS = 18000
BATCH = 32
POOL = 24
"""Batches drawn at once and sorted by width, so that little of a batch is padding."""
PEAK_RATE = 3e-3
WARM_UP = 600

TRAIN_FONTS = (
    r"DejaVu(Sans|Serif)(Condensed|Mono)?(-Bold)?(-?(Bold)?(Oblique|Italic))?\.ttf",
    r"Liberation(Sans|SansNarrow|Serif|Mono)-.*\.ttf",
    r"Free(Sans|Serif|Mono).*\.ttf",
    r"Roboto(Condensed)?-(Regular|Italic|Light|LightItalic|Medium|Bold|BoldItalic|Black)\.ttf",
    r"RobotoSlab-(Regular|Light|Bold)\.otf",
    r"OpenSans-(Regular|Italic|Light|Semibold|Bold|BoldItalic|CondBold|CondLight)\.ttf",
    r"Lato-(Regular|Italic|Light|Medium|Bold|BoldItalic|Black)\.ttf",
    r"Inconsolata\.otf",
    r"Hack-.*\.ttf",
    r"FiraCode-(Regular|Light|Bold)\.ttf",
    r"Carlito-.*\.ttf",
    r"LinLibertine_(R|RI|RB|RBI)\.otf",
    r"LinBiolinum_(R|RI|RB)\.otf",
    r"GenBk?Bas(R|I|B|BI)\.ttf",
    r"Cabin-(Regular|Italic|Bold|BoldItalic)\.otf",
    r"Courier Prime( Sans| Code)?( Bold)?( Italic)?\.(otf|ttf)",
    r"JetBrainsMono-(Regular|Italic|Light|Bold)\.ttf",
    r"Cantarell-(Regular|Light|Bold)\.otf",
    r"Karla-(Regular|Italic|Bold|BoldItalic)\.otf",
)
"""File names of the fonts to train on; hairline and keyboard faces are left out."""

UNSEEN_FONTS = (
    r"Inter-(Regular|Italic|Medium|Bold)\.otf",
    r"Anonymous Pro( B| I)?\.ttf",
    r"Caladea-(Regular|Italic|Bold)\.ttf",
)
"""File names of the fonts that only the held-out set has, beside the one inside Pillow."""


def find_fonts(patterns: Sequence[str], folder: Path) -> list[str | None]:
    """Return the fonts below ``folder`` whose names match, sorted by name; every pattern must match one."""
    files = sorted((path for path in folder.rglob("*.[ot]tf")), key=lambda path: path.name)
    for pattern in patterns:
        if not any(re.fullmatch(pattern, path.name) for path in files):
            sys.exit(f"no font below {folder} matches {pattern}: install the packages named in this script")
    names = {path.name: str(path) for path in files if any(re.fullmatch(p, path.name) for p in patterns)}
    return list(names.values())


# --- network ------------------------------------------------------------------------------------------------


class ConvNorm(nn.Module):  # type: ignore[misc]  # mypy does not look into torch
    """Convolution without bias, batch normalisation, and a ReLU if asked for."""

    def __init__(
        self,
        channels: tuple[int, int],
        kernel: tuple[int, int],
        *,
        stride: tuple[int, int] = (1, 1),
        groups: int = 1,
        relu: bool = True,
    ) -> None:
        super().__init__()
        padding = (kernel[0] // 2 if kernel[0] % 2 else 0, kernel[1] // 2)
        self.conv = nn.Conv2d(*channels, kernel, stride, padding, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(channels[1], momentum=0.03)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, C, H, W] to [N, C', H', W']."""
        y = self.norm(self.conv(x))
        return torch.relu(y) if self.relu else y


class ShuffleUnit(nn.Module):  # type: ignore[misc]  # mypy does not look into torch
    """Residual unit of ShuffleNet (Zhang et al., CVPR 2018, figure 2b) around a channel shuffle."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        same = (channels, channels)
        self.groups = groups
        self.first = ConvNorm(same, (1, 1), groups=groups)
        self.depthwise = ConvNorm(same, (3, 3), groups=channels, relu=False)
        self.last = ConvNorm(same, (1, 1), groups=groups, relu=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, C, H, W] to the same shape."""
        n, c, h, w = x.shape
        y = self.first(x)
        y = y.reshape(n, self.groups, c // self.groups, h, w).transpose(1, 2).reshape(n, c, h, w)
        return torch.relu(x + self.last(self.depthwise(y)))


class Reader(nn.Module):  # type: ignore[misc]  # mypy does not look into torch
    """Convolutions down to one row of 96 channels and half the width, then a bidirectional LSTM and a CTC head."""

    def __init__(self, hidden: int = 96) -> None:
        super().__init__()
        self.features = nn.Sequential(
            ConvNorm((1, 32), (3, 3), stride=(2, 2)),
            ConvNorm((32, 64), (3, 3), stride=(2, 1)),
            ShuffleUnit(64, 4),
            ConvNorm((64, 96), (3, 3), stride=(2, 1)),
            ShuffleUnit(96, 4),
            ShuffleUnit(96, 4),
            nn.MaxPool2d((2, 1)),
            ConvNorm((96, 96), (2, 1)),
        )
        self.norm = nn.LayerNorm(96)
        self.lstm = nn.LSTM(96, hidden, bidirectional=True)
        self.head = nn.Linear(2 * hidden, CLASSES)

    def forward(self, image: Tensor) -> Tensor:
        """Map float32 [N, 1, 32, W] to log-probabilities [ceil(W / 2), N, 96]."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.training):
            x = self.features(image)
        y, _ = self.lstm(self.norm(x.float().squeeze(2).permute(2, 0, 1)))
        return torch.log_softmax(self.head(y), 2)


# --- training -----------------------------------------------------------------------------------------------


def batches(seed: int, fonts: list[str | None], first: int) -> Iterator[tuple[np.ndarray, list[str]]]:
    """Yield training batches from batch ``first`` on: images [32, 1, 32, W] and their texts."""
    for pool in range(first // POOL, sys.maxsize):
        numbers = range(pool * POOL * BATCH, (pool + 1) * POOL * BATCH)
        lines = [random_line(np.random.default_rng([seed, number]), fonts, "train") for number in numbers]
        lines.sort(key=lambda line: line.image.shape[1])
        order = np.random.default_rng([seed, pool, 1]).permutation(POOL)
        for place, index in enumerate(order):
            if pool * POOL + place >= first:
                part = lines[index * BATCH : (index + 1) * BATCH]
                yield pad_batch([line.image for line in part]), [line.text for line in part]


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up, then half a cosine down to zero."""
    if step < WARM_UP:
        return PEAK_RATE * (step + 1) / WARM_UP
    return PEAK_RATE * 0.5 * (1 + float(np.cos(np.pi * (step - WARM_UP) / (steps - WARM_UP))))


def train(work: Path, fonts: list[str | None], seed: int, steps: int) -> None:
    """Train from the start, or from the checkpoint in ``work``, and leave ``work/reader.pt``."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    work.mkdir(parents=True, exist_ok=True)
    network = Reader().to(memory_format=torch.channels_last)
    optimiser = torch.optim.AdamW(network.parameters(), lr=PEAK_RATE, weight_decay=0.01)
    checkpoint, start = work / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        network.load_state_dict(saved["network"])
        optimiser.load_state_dict(saved["optimiser"])
        start = saved["step"]
    probe = [random_line(np.random.default_rng([seed + 1, number]), fonts, "heldout") for number in range(300)]
    print(
        f"{sum(p.numel() for p in network.parameters())} parameters, {len(fonts)} fonts, from step {start}", flush=True
    )

    began, total = time.perf_counter(), 0.0
    for step, (images, texts) in zip(range(start, steps), batches(seed, fonts, start), strict=False):
        network.train()
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, steps)
        log_probs = network(torch.from_numpy(images).to(memory_format=torch.channels_last))
        targets = torch.tensor([index for text in texts for index in encode(text)])
        lengths = torch.tensor([len(text) for text in texts])
        times = torch.full((len(texts),), log_probs.shape[0])
        loss = nn.functional.ctc_loss(log_probs, targets, times, lengths, blank=BLANK, zero_infinity=True)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 2.0)
        optimiser.step()
        total += loss.item()
        if (step + 1) % 100 == 0:
            print(f"{step + 1} loss {total / 100:.4f} at {time.perf_counter() - began:.0f} s", flush=True)
            total = 0.0
        if (step + 1) % 1000 == 0 or step + 1 == steps:
            state = {"network": network.state_dict(), "optimiser": optimiser.state_dict(), "step": step + 1}
            torch.save(state, checkpoint)
            print(f"{step + 1} probe {measure(torch_logits(network), probe)}", flush=True)
    torch.save(network.state_dict(), work / "reader.pt")


def torch_logits(network: Reader) -> Logits:
    """Return the network as a function from images [N, 1, 32, W] to log-probabilities [T, N, 96]."""

    def logits(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return np.asarray(network.eval()(torch.from_numpy(images)).numpy())

    return logits


# --- export -------------------------------------------------------------------------------------------------


class GraphWriter:
    """Collects the nodes and weights of an ONNX graph; every node has one output, which bears its name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []

    def weight(self, name: str, array: Tensor | np.ndarray) -> str:
        """Add an initializer and return its name."""
        values = array.detach().numpy() if isinstance(array, Tensor) else array
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def node(self, op: str, name: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return its output's name."""
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def conv_norm(self, name: str, x: str, module: ConvNorm) -> str:
        """Add Conv, BatchNormalization and, if the module has it, Relu."""
        conv, norm = module.conv, module.norm
        rows, columns = conv.padding
        y = self.node(
            "Conv",
            f"{name}.conv",
            x,
            self.weight(f"{name}.conv.weight", conv.weight),
            kernel_shape=conv.kernel_size,
            strides=conv.stride,
            pads=[rows, columns, rows, columns],
            group=conv.groups,
        )
        parts = {"weight": norm.weight, "bias": norm.bias, "mean": norm.running_mean, "var": norm.running_var}
        inputs = [self.weight(f"{name}.norm.{part}", value) for part, value in parts.items()]
        y = self.node("BatchNormalization", f"{name}.norm", y, *inputs, epsilon=norm.eps)
        return self.node("Relu", f"{name}.relu", y) if module.relu else y

    def shuffle_unit(self, name: str, x: str, module: ShuffleUnit) -> str:
        """Add a residual unit around the custom operator."""
        y = self.conv_norm(f"{name}.first", x, module.first)
        y = self.node("ChannelShuffle", f"{name}.shuffle", y, domain=DOMAIN, groups=module.groups)
        y = self.conv_norm(f"{name}.depthwise", y, module.depthwise)
        y = self.conv_norm(f"{name}.last", y, module.last)
        return self.node("Relu", f"{name}.relu", self.node("Add", f"{name}.add", x, y))

    def lstm(self, name: str, x: str, module: nn.LSTM) -> str:
        """Add a bidirectional LSTM: [T, N, I] to [T, N, 2 H]."""
        hidden = module.hidden_size

        def gates(kind: str) -> np.ndarray:
            """Stack both directions, with PyTorch's gate order i, f, g, o changed to ONNX's i, o, f, c."""
            both = [getattr(module, f"{kind}_l0{direction}").detach().numpy() for direction in ("", "_reverse")]
            return np.stack([part.reshape(4, hidden, -1)[[0, 3, 1, 2]].reshape(part.shape) for part in both])

        y = self.node(
            "LSTM",
            name,
            x,
            self.weight(f"{name}.W", gates("weight_ih")),
            self.weight(f"{name}.R", gates("weight_hh")),
            self.weight(f"{name}.B", np.concatenate([gates("bias_ih"), gates("bias_hh")], 1)),
            direction="bidirectional",
            hidden_size=hidden,
        )
        y = self.node("Transpose", f"{name}.directions_last", y, perm=[0, 2, 1, 3])
        return self.node("Reshape", f"{name}.joined", y, self.weight(f"{name}.shape", np.array([0, 0, 2 * hidden])))


def to_onnx(network: Reader) -> onnx.ModelProto:
    """Write the network as an ONNX model with symbolic batch and width."""
    graph = GraphWriter()
    x = "image"
    for index, module in enumerate(network.features):
        name = f"features.{index}"
        if isinstance(module, ConvNorm):
            x = graph.conv_norm(name, x, module)
        elif isinstance(module, ShuffleUnit):
            x = graph.shuffle_unit(name, x, module)
        else:
            x = graph.node("MaxPool", name, x, kernel_shape=[2, 1], strides=[2, 1])
    x = graph.node("Squeeze", "row", x, graph.weight("row.axis", np.array([2])))
    x = graph.node("Transpose", "time_first", x, perm=[2, 0, 1])
    scale, shift = graph.weight("norm.weight", network.norm.weight), graph.weight("norm.bias", network.norm.bias)
    x = graph.node("LayerNormalization", "norm", x, scale, shift, axis=-1, epsilon=network.norm.eps)
    x = graph.lstm("lstm", x, network.lstm)
    x = graph.node("MatMul", "head.product", x, graph.weight("head.weight", network.head.weight.T))
    x = graph.node("Add", "head", x, graph.weight("head.bias", network.head.bias))
    graph.node("LogSoftmax", "log_probs", x, axis=2)
    return helper.make_model(
        helper.make_graph(
            graph.nodes,
            "reader",
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, HEIGHT, "width"])],
            [helper.make_tensor_value_info("log_probs", TensorProto.FLOAT, ["time", "batch", CLASSES])],
            graph.weights,
            doc_string="Reads one line of printable ASCII text; CTC, class 0 is the blank.",
        ),
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)],
        ir_version=10,
        producer_name="scripts/train_demo.py",
    )


def ort_logits(model: onnx.ModelProto) -> Logits:
    """Return ``model`` as a function, run by ONNX Runtime with the custom operator given as a function."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(with_shuffle_function(model).SerializeToString(), options)
    return lambda images: np.asarray(session.run(None, {"image": images})[0])


def export(work: Path, target: Path) -> None:
    """Write ``work/reader.pt`` as ``target``, after checking that ONNX Runtime agrees with PyTorch to 1e-4."""
    network = Reader()
    network.load_state_dict(torch.load(work / "reader.pt", weights_only=True))
    model = to_onnx(network)
    onnx.checker.check_model(with_shuffle_function(model), full_check=True)
    theirs, ours = torch_logits(network), ort_logits(model)
    rng = np.random.default_rng(0)
    for batch, width in ((1, 16), (3, 17), (2, 160), (5, 333)):
        images = rng.random((batch, 1, HEIGHT, width), np.float32)
        np.testing.assert_allclose(ours(images), theirs(images), rtol=0, atol=1e-4)
    target.write_bytes(model.SerializeToString())
    print(f"{target}: {target.stat().st_size} bytes, {len(model.graph.node)} nodes")


# --- held-out data ------------------------------------------------------------------------------------------


def heldout(fonts: Path) -> None:
    """Write the held-out lines, one half of them in unseen fonts."""
    families = (find_fonts(TRAIN_FONTS, fonts), [*find_fonts(UNSEEN_FONTS, fonts), None])
    numbers = range(HELDOUT_LINES)
    rngs = [np.random.default_rng([HELDOUT_SEED, number]) for number in numbers]
    lines = [random_line(rng, families[number % 2], "heldout") for number, rng in zip(numbers, rngs, strict=True)]
    save_lines(HELDOUT, lines)
    print(f"{HELDOUT}: {len(lines)} lines, {HELDOUT.stat().st_size} bytes")


def sample() -> None:
    """Write the packaged sample line: plain, larger than the model's input, in Pillow's own font."""
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (420, 64), (244, 240, 228))
    ImageDraw.Draw(picture).text((24, 46), SAMPLE_TEXT, fill=(28, 36, 84), font=load_font(None, 36), anchor="ls")
    picture.save(SAMPLE)
    np.save(SAMPLE.with_suffix(".npy"), np.asarray(picture.convert("L")))


def report(model: onnx.ModelProto) -> None:
    """Print the accuracy of ``model`` on the held-out lines."""
    lines = load_lines(HELDOUT)
    unseen = [line for line in lines if any(re.fullmatch(p, line.font) for p in (*UNSEEN_FONTS, PILLOW_FONT))]
    seen = [line for line in lines if line not in unseen]
    logits = ort_logits(model)
    for name, part in (("all", lines), ("trained fonts", seen), ("unseen fonts", unseen)):
        accuracy = measure(logits, part)
        print(f"{name}: {len(part)} lines, {accuracy}")
    for truth, reading in measure(logits, lines).misread:
        print(f"  {truth!r} was read as {reading!r}")


def main() -> None:
    """Run one subcommand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["train", "export", "heldout", "sample", "measure"])
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "demo", help="folder of checkpoints")
    parser.add_argument("--model", type=Path, default=MODEL, help="ONNX file to write or measure")
    parser.add_argument("--fonts", type=Path, default=Path("/usr/share/fonts"), help="folder of the font files")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of weights and training data")
    parser.add_argument("--steps", type=int, default=STEPS, help="optimiser steps")
    arguments = parser.parse_args()
    match arguments.command:
        case "train":
            train(arguments.work, find_fonts(TRAIN_FONTS, arguments.fonts), arguments.seed, arguments.steps)
        case "export":
            export(arguments.work, arguments.model)
        case "heldout":
            heldout(arguments.fonts)
        case "sample":
            sample()
        case "measure":
            report(onnx.load(arguments.model))


if __name__ == "__main__":
    main()
