"""Operators that have more than their ONNX schema: shape rules, compositions, declared operators of other domains.

Importing :mod:`accord.ops.catalog` registers all of them.
"""
