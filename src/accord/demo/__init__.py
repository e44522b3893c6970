"""The packaged demo: a small text-line reader, its weights, and the renderer that made its training data.

The weights in ``reader.onnx`` were trained by ``scripts/train_demo.py`` on lines from :mod:`accord.demo.render`.
"""
