"""The whitespace of a JSON text as it is written: what stood between which signs so far, and how deep."""

from collections import Counter, defaultdict
from typing import NamedTuple

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
MOST_KINDS = 16  # of whitespace that are remembered for a place
MOST_WHITESPACE = 64  # characters between two signs
DEEPEST = 16
SIGNS = ',:{}[]"' + SIGN_OF_VALUES
FORGETTING = 64
"""Counts of a place are halved when they come to this."""


class Place(NamedTuple):
    """Where whitespace stands."""

    after: str
    """The sign before it."""
    closes: bool
    """A bracket is closed by the sign after it."""
    depth: int
    """Brackets that are open."""


class Habits:
    """The whitespace at each kind of place, counted over all requests: no more is kept of them."""

    def __init__(self) -> None:
        self._seen: defaultdict[Place, Counter[str]] = defaultdict(Counter)

    def learn(self, place: Place, whitespace: str) -> None:
        seen = self._seen[place]
        if whitespace in seen or len(seen) < MOST_KINDS:
            seen[whitespace] += 1
        if seen.total() >= FORGETTING:
            self._seen[place] = Counter({kind: count // 2 for kind, count in seen.items() if count > 1})

    def usual(self, place: Place) -> str:
        if seen := self._seen.get(place):
            return seen.most_common(1)[0][0]
        return "" if place.closes else USUAL.get(place.after, "")


class JsonStyle:
    """Follows a JSON text, and says with what whitespace it will go on."""

    def __init__(self, habits: Habits, learns: bool = True) -> None:
        """Take whether the habits are to learn from this text, too."""
        self._habits, self._learns = habits, learns
        self._own: dict[Place, str] = {}
        self._sign = ""  # the last character that is no whitespace, outside of strings
        self._space = ""  # what stands after it
        self._depth = 0
        self.in_string = False
        self._escaped = False
        self.value = ""
        """What is written of the string or number at the end of the text."""

    def copy(self) -> "JsonStyle":
        """Return one that can be asked what would follow; it teaches this one nothing."""
        other = JsonStyle(self._habits, self._learns)
        other._own = self._own
        other._sign, other._space, other._depth = self._sign, self._space, self._depth
        other.in_string, other._escaped, other.value = self.in_string, self._escaped, self.value
        return other

    def append(self, text: str, learn: bool = True) -> None:
        for character in text:
            if self.in_string:
                self._append_to_string(character)
            elif character in WHITESPACE:
                self._space = (self._space + character)[: MOST_WHITESPACE + 1]
                self.value = ""
            else:
                if learn:
                    self._learn(self._place(character))
                of_value = character in VALUES
                self._sign, self._space = SIGN_OF_VALUES if of_value else character, ""
                self.value = self.value + character if of_value else ""
                self._depth += (character in OPENING) - (character in CLOSING)
                self.in_string = character == '"'

    def _learn(self, place: Place) -> None:
        usual = place.after in SIGNS and 0 < place.depth <= DEEPEST and len(self._space) <= MOST_WHITESPACE
        if place.after and usual:
            self._own[place] = self._space
            if self._learns:
                self._habits.learn(place, self._space)

    def _append_to_string(self, character: str) -> None:
        self.value += character
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self.in_string = False
            self._space = self.value = ""

    @property
    def is_within(self) -> bool:
        """Return whether a bracket or a string is open."""
        return self._depth > 0 or self.in_string

    def next_signs(self) -> str:
        """Return the signs that can follow the last one in JSON of any schema."""
        return FOLLOWING.get(self._sign, ENDS)

    def whitespace_before(self, sign: str) -> str | None:
        """Return the whitespace that is still to come if this sign is next; None in a string, or if other
        whitespace has been written than was expected."""
        if self.in_string:
            return None
        expected = self._expected(self._place(sign))
        return expected[len(self._space) :] if expected.startswith(self._space) else None

    def _place(self, sign: str) -> Place:
        return Place(self._sign, sign in CLOSING, self._depth)

    def _expected(self, place: Place) -> str:
        """Return the whitespace as it was at such a place before, or indented as at another."""
        if (space := self._own.get(place)) is not None:
            return space
        level = place.depth - place.closes
        unit = self._unit_of_indentation(place)
        if unit is not None and len(unit) * level <= MOST_WHITESPACE:
            return "\n" + unit * level
        return self._habits.usual(place)

    def _unit_of_indentation(self, place: Place) -> str | None:
        """Return by what a level is indented, if whitespace of this kind breaks lines in this text: what
        brackets hold, and what closes them, stands on lines of its own if the first thing in them does."""
        if place.closes and place.after in OPENING:
            return None
        within = place.closes or place.after == ","
        for seen, space in self._own.items():
            alike = (seen.after, seen.closes) == (place.after, place.closes)
            opened = within and seen.after in OPENING and seen.depth == place.depth
            level = seen.depth - seen.closes
            if (alike or opened) and space.startswith("\n") and level:
                return space[1 : 1 + (len(space) - 1) // level]
        return None
