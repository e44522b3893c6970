"""Room: ops."""
