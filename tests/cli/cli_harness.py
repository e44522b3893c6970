"""Calls of the command line in this process, and small models for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from onnx import parser

from accord.cli import main

IMAGE = """
<ir_version: 8, opset_import: ["":17]>
g (float[N,3,H,W] image, int64[1] k = {2}) => (float[N,4,H,W] y, int64[1] c)
<float[4,3,1,1] w = {1,2,3,4,5,6,7,8,9,10,11,12}, float[4] b = {1,1,1,1}>
{ a = Conv(image, w, b)  r = Relu(a)  i = Identity(r)  y = Sqrt(i)  c = Identity(k) }
"""
#: Values of all kinds; the LabelEncoder has no generated kernel.
MIXED = """
<ir_version: 8, opset_import: ["":17, "ai.onnx.ml":2]>
g (string[N] text, uint8[N] byte, int64[N] index, bool[N] flag, seq(float[M]) list) =>
  (string[N] t, uint8[N] b, int64[N] i, bool[N] f, seq(float[M]) s, int64[N] e)
{ t = StringNormalizer<case_change_action="UPPER">(text)  b = Identity(byte)  i = Neg(index)  f = Not(flag)
  s = Identity(list)  e = ai.onnx.ml.LabelEncoder<keys_int64s=[1], values_int64s=[2]>(index) }
"""
NAN = """<ir_version: 8, opset_import: ["":17]> g (float[4] x) => (float[4] y, float y2)
{ y = Log(x)  y2 = ReduceSum<keepdims=0>(y) }"""


def write(folder: Path, text: str = IMAGE, name: str = "model.onnx") -> str:
    """A model file."""
    path = folder / name
    path.write_bytes(parser.parse_model(text).SerializeToString())
    return str(path)


def call(*arguments: str) -> Result:
    """``accord ARGUMENTS``."""
    return CliRunner().invoke(main, list(arguments), prog_name="accord")


def data(*arguments: str) -> Any:
    """What ``accord ARGUMENTS --json`` writes; nothing but JSON may be on stdout."""
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)
