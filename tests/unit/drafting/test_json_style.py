"""The whitespace of a JSON text."""

import pytest

from slipstream.drafting.json_style import Habits, JsonStyle

PRETTY = """{
  "a": 1,
  "b": [
    {
      "c": "x, y: {z}",
      "d": 2
    },"""


def after(text: str, habits: Habits | None = None) -> JsonStyle:
    style = JsonStyle(habits or Habits())
    style.append(text)
    return style


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", ""),
        ('{"a":', " "),  # as usual
        ('{"a":1,"b":', ""),  # as the text has it
        ('{"a":1,', " "),
        ('{"a":1,"b":2,', ""),
        ('{"a": "x', None),  # in a string
        ('{"a": "x\\"y:', None),
        ('{"a": "x:y"', ""),
        ('{"a": 1,\n', None),  # otherwise than expected
    ],
)
def test_next_whitespace(text: str, expected: str | None) -> None:
    assert after(text).next_whitespace() == expected


def test_by_depth() -> None:
    style = after(PRETTY)
    assert style.next_whitespace() == "\n    "
    style.append("\n    {")
    assert style.next_whitespace() == "\n      "
    style.append('\n      "c": 3,')
    assert style.next_whitespace() == "\n      "


def test_other_requests_teach_the_usual() -> None:
    habits = Habits()
    for _ in range(3):
        after('{"a":1,"b":2}', habits)
    assert after('{"x":', habits).next_whitespace() == ""


def test_a_copy_teaches_nothing() -> None:
    style = after('{"a": 1, ')
    other = style.copy()
    other.append('"b":\t2,\t"c":\t', learn=False)
    assert style.next_whitespace() == ""
    style.append('"b":')
    assert style.next_whitespace() == " "
