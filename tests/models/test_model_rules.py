"""Outputs stay the same whichever single rule is switched off."""

from __future__ import annotations

import pytest
from models_harness import ALL, check, content, marked

from accord.passes.phases import rule_names
from accord.runtime.model import Model
from accord.runtime.options import Options

#: Together they meet every rule.
QUICK = ("pp-ocr-cls", "silero-vad", "shufflenet")


@pytest.mark.parametrize(
    ("name", "rule"), [marked(name, rule, quick=name in QUICK) for name in ALL for rule in rule_names()]
)
def test_outputs_without_one_rule(name, rule):
    model = Model(content(name), Options(disabled_rules=(rule,)))
    assert rule not in {p.rule for p in model.compiled.log.patches}
    check(name, model)
