"""Records behave as frozen dataclasses do."""

import pickle
from dataclasses import dataclass, field, fields, replace

import pytest

from accord.record import record


@record
class Size:
    rows: int
    columns: int = 4
    name: str = field(default="", compare=False)
    parts: tuple[int, ...] = field(default_factory=tuple, repr=False)


@record
class Named(Size):
    label: str = "n"


@record
class Shown:
    x: int

    def __repr__(self):
        return f"<{self.x}>"


@record
class Empty:
    pass


@dataclass(frozen=True)
class Standard:
    rows: int
    columns: int = 4
    name: str = field(default="", compare=False)
    parts: tuple[int, ...] = field(default_factory=tuple, repr=False)


@pytest.mark.parametrize("other", [(2, 3), (1, 4), (1, 4, "b"), (1, 4, "a", (1,)), (1,)])
def test_records_are_equal_where_dataclasses_are(other):
    assert (Size(1, 4, "a") == Size(*other)) == (Standard(1, 4, "a") == Standard(*other))
    assert (hash(Size(1, 4, "a")) == hash(Size(*other))) == (Standard(1, 4, "a") == Standard(*other))


def test_a_record_equals_none_of_another_class():
    assert Size(1) != Standard(1)
    assert Size(1) != Named(1)
    assert Size(1) != 1
    assert Empty() == Empty()
    assert Empty() != Size(1)
    assert hash(Empty()) == hash(Empty())


def test_texts_are_those_of_dataclasses():
    assert repr(Size(1, name="a")) == repr(Standard(1, name="a")).replace("Standard", "Size")
    assert repr(Shown(3)) == "<3>"


def test_records_are_made_and_changed_as_dataclasses():
    assert [f.name for f in fields(Named)] == ["rows", "columns", "name", "parts", "label"]
    assert replace(Named(1, label="x"), rows=2) == Named(2, label="x")
    with pytest.raises(TypeError, match="rows"):
        Size()
    with pytest.raises(TypeError, match="other"):
        Size(1, other=2)


def test_records_are_pickled():
    made = Named(1, 2, "a", (3,), "b")
    again = pickle.loads(pickle.dumps(made))
    assert again == made
    assert again.name == "a"
