"""The whitespace of a JSON text as it is written: what stood after each bracket, colon and comma so far."""

from collections import Counter, defaultdict

WHITESPACE = " \t\n\r"
OPENING, CLOSING = "{[", "}]"
VALUES = "0123456789.+-eEtrufalsn"
SIGN_OF_VALUES = "0"
"""Stands for what numbers, true, false and null consist of: few signs are remembered."""
VALUE_STARTS = '"{[-015tfn'
"""Of values; some digits stand for all."""
ENDS = ",}]:"
FOLLOWING = {
    "": VALUE_STARTS, ":": VALUE_STARTS, ",": VALUE_STARTS, "[": VALUE_STARTS + "]", "{": '"}',
    SIGN_OF_VALUES: ENDS + "015.",
}  # fmt: skip
"""What may follow a sign by the rules of JSON, whitespace apart; after others it is ENDS."""
USUAL = {":": " ", ",": " "}
"""Before anything has been seen."""
MOST_KINDS = 16  # of whitespace that are remembered for a sign
DEEPEST = 16


class Habits:
    """The whitespace after each sign at each depth, counted over all requests: no more is kept of them."""

    def __init__(self) -> None:
        self._seen: defaultdict[tuple[str, int], Counter[str]] = defaultdict(Counter)

    def learn(self, sign: str, depth: int, whitespace: str) -> None:
        seen = self._seen[sign, min(depth, DEEPEST)]
        if whitespace in seen or len(seen) < MOST_KINDS:
            seen[whitespace] += 1

    def usual(self, sign: str, depth: int) -> str:
        if seen := self._seen.get((sign, min(depth, DEEPEST))):
            return seen.most_common(1)[0][0]
        return USUAL.get(sign, "")


class JsonStyle:
    """Follows a JSON text, and says with what whitespace it will go on."""

    def __init__(self, habits: Habits) -> None:
        self._habits = habits
        self._own: dict[tuple[str, int], str] = {}
        self._sign = ""  # the last character that is no whitespace, outside of strings
        self._space = ""  # what stands after it
        self._depth = 0
        self.in_string = False
        self._escaped = False

    def copy(self) -> "JsonStyle":
        """Return one that can be asked what would follow; it teaches this one nothing."""
        other = JsonStyle(self._habits)
        other._own = self._own
        other._sign, other._space, other._depth = self._sign, self._space, self._depth
        other.in_string, other._escaped = self.in_string, self._escaped
        return other

    def append(self, text: str, learn: bool = True) -> None:
        for character in text:
            if self.in_string:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self.in_string = False
                    self._sign, self._space = '"', ""
                continue
            if character in WHITESPACE:
                self._space += character
                continue
            if learn and self._sign:
                self._own[self._sign, self._depth] = self._space
                self._habits.learn(self._sign, self._depth, self._space)
            self._sign, self._space = SIGN_OF_VALUES if character in VALUES else character, ""
            self._depth += (character in OPENING) - (character in CLOSING)
            self.in_string = character == '"'

    def next_whitespace(self) -> str | None:
        """Return the whitespace that is still to come before the next sign; None in a string, or if other
        whitespace has been written than was expected."""
        if self.in_string:
            return None
        expected = self._expected()
        return expected[len(self._space) :] if expected.startswith(self._space) else None

    def next_signs(self) -> str:
        """Return the signs that can follow the last one in JSON of any schema."""
        return FOLLOWING.get(self._sign, ENDS)

    def _expected(self) -> str:
        """Return the whitespace after the last sign: as it was there before at this depth, or indented as at
        another."""
        if (space := self._own.get((self._sign, self._depth))) is not None:
            return space
        for (sign, depth), space in self._own.items():
            if sign == self._sign and space.startswith("\n") and depth:
                return "\n" + space[-1] * ((len(space) - 1) // depth * self._depth)
        return self._habits.usual(self._sign, self._depth)
