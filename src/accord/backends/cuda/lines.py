"""Lines of Triton in the making."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

__all__ = ["HEAD", "NEXT", "WAIT", "Code", "ceildiv", "power_of_two"]

#: Of a module.
HEAD = "import triton\nimport triton.language as tl\n\n\n"
#: The line of a kernel in front of which it touches no memory that another kernel may write or read. One that is
#: started before those in front of it are done waits for them there (:func:`accord.backends.cuda.code.function_of`);
#: elsewhere, and in the interpreter, it is a comment.
WAIT = "# wait: those in front are done"
#: The line behind which it has little left to do but to store its results: the next one may be started.
NEXT = "# next: the one behind may start"


class Code(list[str]):
    """Lines of a function; what is appended gets the indentation of its place."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 1

    def append(self, text: str) -> None:
        """Add a line."""
        super().append("    " * self._depth + text)

    def __call__(self, *lines: str) -> None:
        """Add lines."""
        for line in lines:
            self.append(line)

    @contextmanager
    def indented(self, head: str) -> Iterator[None]:
        """What is added meanwhile belongs to ``head``, a line that ends with a colon."""
        self.append(head)
        self._depth += 1
        yield
        self._depth -= 1

    def function(self, name: str, parameters: Sequence[str], decorator: str = "triton") -> str:
        """The whole function; ``decorator`` is the module whose ``jit`` it gets."""
        body = "\n".join(self)
        return f"@{decorator}.jit\ndef {name}({', '.join(parameters)}):\n{body}\n"


def ceildiv(a: int, b: int) -> int:
    """``a / b``, rounded up."""
    return -(-a // b)


def power_of_two(n: int) -> int:
    """The least power of two that is not below ``n``."""
    return 1 << max(0, n - 1).bit_length()
