#!/usr/bin/env python3
"""Four threads on one session on a GPU: results of every run are compared with those of one thread.

    python scripts/gpu_threads.py [--threads N] [--seconds S] [--device DEVICE]

Inputs have several sizes in any order, on the host and on the device, so that frames, arenas and graphs are made, met
again and given back while others run. Bits have to be those of a run alone: nothing is summed in another order.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from typing import Any

import numpy as np

import accord

SIZES = (1, 2, 3, 7, 16, 33, 64, 100)
CHANNELS, HIDDEN = 64, 256


def model() -> Any:
    """A block of products, normalisations, a branch, and operators of the library."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)

    def weights(name: str, *shape: int) -> Any:
        return numpy_helper.from_array((rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32), name)

    constants = [weights("w1", CHANNELS, HIDDEN), weights("w2", HIDDEN, CHANNELS), weights("w3", CHANNELS, CHANNELS)]
    constants += [numpy_helper.from_array(np.ones(CHANNELS, np.float32), "scale")]
    constants += [numpy_helper.from_array(np.zeros(CHANNELS, np.float32), "shift")]
    nodes = [
        helper.make_node("LayerNorm", ["x", "scale", "shift"], ["n"], domain="accord"),
        helper.make_node("MatMul", ["n", "w1"], ["h"]),
        helper.make_node("GELU", ["h"], ["g"], domain="accord"),
        helper.make_node("MatMul", ["g", "w2"], ["o"]),
        helper.make_node("Add", ["o", "x"], ["r"]),
        helper.make_node("MatMul", ["n", "w3"], ["b"]),
        helper.make_node("Softmax", ["b"], ["s"], axis=-1),
        helper.make_node("Mul", ["r", "s"], ["y"]),
        helper.make_node("RMSNorm", ["y", "scale"], ["z"], domain="accord"),
    ]

    def value(name: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", CHANNELS])

    graph = helper.make_graph(nodes, "threads", [value("x")], [value("y"), value("z")], constants)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("accord", 1)], ir_version=9
    )


def main() -> int:
    """Run and print; 1 if a result differs or a run fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    kind, _, device_id = options.device.partition(":")
    m = accord.load(model(), device=options.device)
    rng = np.random.default_rng(1)
    feeds = [rng.standard_normal((n, CHANNELS)).astype(np.float32) for n in SIZES]
    expected = [[np.array(v) for v in m(x)] for x in feeds]
    faults: list[str] = []
    counts = [0] * options.threads
    end = time.monotonic() + options.seconds

    def work(number: int) -> None:
        own = np.random.default_rng(number)
        far = [accord.OrtValue.ortvalue_from_numpy(x, kind, int(device_id or 0)).value for x in feeds]
        try:
            while time.monotonic() < end and not faults:
                k = int(own.integers(len(feeds)))
                results = m(far[k] if own.random() < 0.5 else feeds[k])
                for name, got, exact in zip(("y", "z"), results, expected[k], strict=True):
                    if got.tobytes() != exact.tobytes():
                        apart = np.abs(got.astype(np.float64) - exact).max()
                        faults.append(f"thread {number}, {len(feeds[k])} rows: '{name}' differs by {apart}")
                counts[number] += 1
                if number == 0 and counts[0] % 500 == 0:
                    m.trim()
        except Exception as error:  # noqa: BLE001  whatever a run raises is its result
            faults.append(f"thread {number}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(options.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{sum(counts)} runs in {options.threads} threads ({', '.join(map(str, counts))})")
    for fault in faults:
        print(f"FAILED {fault}")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
