"""The whitespace of a JSON text."""

import pytest

from slipstream.drafting.json_style import MOST_KINDS, MOST_WHITESPACE, Habits, JsonStyle

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
    ("text", "sign", "expected"),
    [
        ("{", '"', ""),
        ('{"a":', "0", " "),  # as usual
        ('{"a":1,"b":', "0", ""),  # as the text has it
        ('{"a":1,', '"', " "),
        ('{"a":1,"b":2,', '"', ""),
        ('{"a": "x', '"', None),  # in a string
        ('{"a": "x\\"y:', '"', None),
        ('{"a": "x:y"', ",", ""),
        ('{"a": 1,\n', '"', None),  # otherwise than expected
        ('{\n  "a": 1', "}", "\n"),  # closed on a line of its own, as it was opened
        ('{\n  "a": 1', ",", ""),
        ('{\n  "a": {', "}", ""),
        ('{\n  "a": [1, 2', "]", ""),
    ],
)
def test_whitespace(text: str, sign: str, expected: str | None) -> None:
    assert after(text).whitespace_before(sign) == expected


def test_by_depth() -> None:
    style = after(PRETTY)
    assert style.whitespace_before("{") == "\n    "
    style.append("\n    {")
    assert style.whitespace_before('"') == "\n      "
    style.append('\n      "c": 3,')
    assert style.whitespace_before('"') == "\n      "
    style.append('\n      "d": 3')
    assert style.whitespace_before("}") == "\n    "
    style.append("\n    }")
    assert style.whitespace_before("]") == "\n  "


def test_other_requests_teach_the_usual() -> None:
    habits = Habits()
    for _ in range(3):
        after('{"a":1,"b":2}', habits)
    assert after('{"x":', habits).whitespace_before("0") == ""


def test_a_copy_teaches_nothing() -> None:
    style = after('{"a": 1, ')
    other = style.copy()
    other.append('"b":\t2,\t"c":\t', learn=False)
    assert style.whitespace_before('"') == ""
    style.append('"b":')
    assert style.whitespace_before("0") == " "


def test_the_value_at_the_end() -> None:
    for text, value in (
        ('{"a": "x y', "x y"),
        ('{"a": "x"', ""),
        ('{"a": -12', "-12"),
        ('{"a": 12 ', ""),
        ('{"a": ', ""),
    ):
        assert after(text).value == value


def test_long_whitespace_is_neither_kept_nor_guessed() -> None:
    """A text may be indented by thousands of spaces and be thousands of brackets deep."""
    style = after("{\n" + " " * 5000 + "{" * 1000)
    assert style.whitespace_before('"') == ""
    style = after("{\n" + " " * 40 + "[" * 1000)
    assert len(style.whitespace_before("1") or "") <= MOST_WHITESPACE
    style.append(" " * 1000)
    assert style.whitespace_before("1") is None


def test_habits_are_few() -> None:
    habits = Habits()
    for number in range(2000):
        after("{" + "}" * (number % 50) + chr(300 + number) + " " * (number % 70) + "[1,2]", habits)
    assert len(habits._seen) < 300
    assert all(len(seen) <= MOST_KINDS for seen in habits._seen.values())


def test_new_habits_take_the_place_of_old_ones() -> None:
    habits = Habits()
    for spaces in (1, 0):
        for _ in range(100):
            after('{"a":' + " " * spaces + "1}", habits)
        assert after('{"a":', habits).whitespace_before("1") == " " * spaces


def test_some_texts_teach_nothing() -> None:
    habits = Habits()
    for _ in range(3):
        style = JsonStyle(habits, learns=False)
        style.append('{"a":1,"b":2}')
    assert after('{"a":', habits).whitespace_before("1") == " "
