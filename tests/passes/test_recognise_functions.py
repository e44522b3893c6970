"""The bodies of ONNX's own function operators are recognised as the operators that they define."""

from __future__ import annotations

import pytest
from recognise_harness import attributes, compiled, ops, reasons

from accord.cli.suites import load_suite

SINGLE = {
    "Celu": "celu_expanded|celu_float16_expanded",
    "Elu": "elu_expanded_ver18",
    "Gelu": "gelu_(default|tanh)_1_expanded",
    "HardSigmoid": "hardsigmoid_expanded_ver18",
    "HardSwish": "hardswish_expanded",
    "LeakyRelu": "leakyrelu_expanded",
    "LogSoftmax": "logsoftmax_(axis_1|large_number)_expanded(_ver18)?",
    "Mish": "mish_expanded",
    "Selu": "selu_expanded_ver18",
    "Softmax": "softmax_(axis_0|axis_2|large_number)_expanded(_ver18)?",
    "Softplus": "softplus_expanded_ver18",
    "Softsign": "softsign_expanded_ver18",
    "Swish": "swish_expanded",
}
ATTENTION = (
    "attention_3d(_attn_mask|_causal|_gqa|_gqa_causal|_softcap|_diff_heads_sizes_scaled|_local_window)?_expanded|"
    "attention_3d_(gqa_|diff_heads_)?with_past_and_present_expanded|"
    "attention_4d_(attn_mask(_3d|_4d|_bool|_3d_causal|_causal_bf16)?|causal_fp16|softcap|gqa_scaled)_expanded|"
    "attention_4d_causal_with_past_and_present_expanded|"
    "attention_23_boolmask_fullymasked_row_nan_robustness_expanded|"
    "flexattention_(causal_mask|gqa|diff_head_sizes)_expanded_ver26"
)


def cases(pattern):
    return [pytest.param(c.model, id=c.name) for c in load_suite("node", f"^({pattern})$")]


@pytest.mark.parametrize(("op", "make"), [(op, p.values[0]) for op, e in SINGLE.items() for p in cases(e)])
def test_one_operator(op, make):
    m = compiled(make())
    assert ops(m) == [op], reasons(m)


@pytest.mark.parametrize("make", cases(ATTENTION))
def test_attention(make):
    m = compiled(make())
    assert ops(m) == ["Attention"], reasons(m)


def test_the_cases_are_there():
    assert all(cases(e) for e in SINGLE.values())
    assert len(cases(ATTENTION)) > 20


def test_rotary():
    (case,) = load_suite("node", "^rotary_embedding_interleaved_expanded$")
    m = compiled(case.model())
    assert attributes(m, "RotaryEmbedding")["interleaved"] == 1
