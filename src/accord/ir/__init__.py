"""The typed graph: symbolic sizes, facts, builders, patches. The graph itself is ``onnx_ir``."""
