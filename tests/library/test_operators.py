"""Every operator of the library in a model: its kernel beside its reference, and no step that falls back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import accord.library
from accord.contract.registry import all_contracts
from library.calls import Call, calls, close, dtype_of

SIZE = st.integers(0, 3) | st.sampled_from([5, 8, 17])
SOME = st.integers(1, 3) | st.sampled_from([5, 8, 17])
FEW = st.integers(1, 4)
LEAD = st.lists(st.integers(0, 4), max_size=2).map(tuple)
LONG = SIZE | st.sampled_from([31, 64, 129, 1000])
FLAG = st.booleans().map(int)


def times(*names, factor=FEW):
    """A multiple of what was drawn before."""
    return lambda d: factor.map(lambda k: k * int(np.prod([d[n] for n in names])))


def at_least(name, *, off=0):
    return lambda d: st.integers(d[name] + off, d[name] + off + 4)


def window(kernel):
    """Sizes of an image in which a window has a place."""
    return lambda d: st.integers(
        max(1, d["dilation"] * (d[kernel] - 1) + 1 - 2 * d["padding"]), d["dilation"] * d[kernel] + 7
    )


HEADS = {"B": st.integers(0, 2), "G": FEW, "H": times("G"), "Q": SIZE | st.just(50), "K": SIZE | st.just(300)}
ATTEND = {**HEADS, "D": SOME, "E": SOME}
GEOMETRY = {"stride": st.integers(1, 2), "padding": st.integers(0, 2), "dilation": st.integers(1, 2), "groups": FEW}
WINDOW = {"KH": FEW, "KW": FEW, "H": window("KH"), "W": window("KW")}
CONV = {"N": st.integers(0, 2), "C": times("groups"), "M": times("groups"), **WINDOW}
DEFORM = {
    "N": st.integers(0, 2),
    "C": times("groups", "offset_groups", factor=st.integers(1, 2)),
    "M": times("groups"),
    **WINDOW,
}
IMAGE = {"N": st.integers(0, 3), "C": SIZE, "H": SOME, "W": SOME}
ACTIVATION = st.sampled_from(["none", "relu", "gelu", "gelu_tanh", "silu", "hard_swish", "sigmoid", "tanh"])
EPS = st.sampled_from([1e-5, 1e-2])
TIME = {"L": SIZE, "N": st.integers(0, 3), "C": at_least("blank", off=1)}
BLANK = {"blank": st.integers(0, 3)}
STATE = {"N": SIZE, "I": SOME, "H": SOME}

#: Operator → sizes, attributes.
TABLE = {
    "ALiBiAttention": (ATTEND, {}),
    "Attention": (
        ATTEND,
        {"scale": st.sampled_from([0.0, 0.3]), "causal": FLAG, "window": st.sampled_from([-1, 0, 3])},
    ),
    "ChannelShuffle": (
        {"N": st.integers(0, 3), "C": times("groups"), "H": SIZE, "W": LONG},
        {"groups": FEW},
    ),
    "Conv2d": (CONV, {**GEOMETRY, "activation": ACTIVATION}),
    "CTCForward": ({**TIME, "S": SIZE}, BLANK),
    "CTCLoss": ({**TIME, "S": SIZE}, BLANK),
    "CTCGreedyDecode": (TIME, BLANK),
    "CTCBeamDecode": (TIME, {**BLANK, "beams": st.integers(1, 6)}),
    "DeformConv2d": (DEFORM, {**GEOMETRY, "offset_groups": FEW}),
    "GELU": ({"...": LEAD}, {"approximate": st.sampled_from(["none", "tanh"])}),
    "GRUCell": (STATE, {}),
    "GridSample": ({**IMAGE, "OH": SIZE, "OW": SIZE}, {"align_corners": FLAG}),
    "GroupNorm": ({**IMAGE, "C": times("groups")}, {"groups": FEW, "eps": EPS}),
    "HardSigmoid": ({"...": LEAD}, {}),
    "HardSwish": ({"...": LEAD}, {}),
    "LSTM": ({"L": SOME, **STATE}, {}),
    "LSTMCell": (STATE, {}),
    "LayerNorm": ({"...": LEAD, "D": LONG}, {"eps": EPS}),
    "Linear": ({"...": LEAD, "K": SIZE, "N": SIZE}, {"activation": ACTIVATION}),
    "Mish": ({"...": LEAD}, {}),
    "NonMaxSuppression": ({"B": SIZE}, {"iou": st.sampled_from([0.2, 0.5]), "score": st.sampled_from([0.0, 4.5])}),
    "PixelShuffle": (
        {**IMAGE, "C": times("factor", "factor", factor=st.integers(0, 2))},
        {"factor": st.integers(1, 3)},
    ),
    "PixelUnshuffle": ({**IMAGE, "H": times("factor"), "W": times("factor")}, {"factor": st.integers(1, 3)}),
    "PrefixAttention": (ATTEND, {"prefix": st.integers(0, 9)}),
    "QKVAttention": (
        {"B": st.integers(0, 2), "S": SIZE, "M": SOME,
         "P": lambda d: SOME.map(lambda k: k * (d["heads"] + 2 * d["groups"]))},
        {"groups": FEW, "heads": times("groups"), "causal": FLAG, "scale": st.sampled_from([0.0, 0.3])},
    ),
    "QuantizedDeformConv2d": (DEFORM, {**GEOMETRY, "offset_groups": FEW}),
    "RMSNorm": ({"...": LEAD, "D": LONG}, {"eps": EPS}),
    "ResizeBilinear": (IMAGE, {"height": SOME, "width": SOME, "align_corners": FLAG}),
    "RoIAlign": (
        {**IMAGE, "N": FEW, "R": SIZE},
        {"height": FEW, "width": FEW, "samples": st.integers(1, 3), "spatial_scale": st.sampled_from([1.0, 0.25])},
    ),
    "SiLU": ({"...": LEAD}, {}),
    "SlidingWindowAttention": (ATTEND, {"window": st.integers(0, 9)}),
    "SoftCapAttention": (ATTEND, {"cap": st.sampled_from([2.0, 50.0])}),
    "Softmax": ({"...": LEAD, "D": LONG.filter(bool)}, {}),
    "SparseMatMul": ({"R": SOME, "E": lambda d: SIZE if d["R"] > 1 else st.just(0), "K": SOME, "N": LONG}, {}),
    "BlockSparseMatMul": (
        {"BR": FEW | st.just(8), "BC": FEW, "R": SOME, "K": SOME, "N": LONG,
         "E": lambda d: SIZE if d["R"] > 1 else st.just(0)},
        {"rows": lambda d: st.integers(max(0, (d["R"] - 2) * d["BR"] + 1), (d["R"] - 1) * d["BR"])},
    ),
}  # fmt: skip
CONTRACTS = {c.semantic.name: c for c in all_contracts() if c.semantic.domain == "accord"}


def test_every_operator_is_here():
    assert set(TABLE) == set(CONTRACTS)
    assert {getattr(accord.library, n).contract.semantic.name for n in accord.library.__all__} == set(TABLE)


@pytest.mark.parametrize("name", sorted(TABLE))
def test_a_kernel_agrees_with_its_reference(name):
    contract = CONTRACTS[name]
    sizes, attributes = TABLE[name]

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(calls(contract, sizes, attributes))
    def check(call: Call):
        loaded, arrays, outputs = call.run()
        assert not [p.op for s in loaded.plan.steps for p in [s.placement] if p.fallback]
        for actual, expected in zip(outputs, call.expected(arrays), strict=True):
            close(contract, dtype_of(call), actual, expected)

    check()
