"""What an operator promises: the contract's dataclasses, their checks, and the registry."""
