"""Drafts whose tokens are not known here: a drafter has put them where the next step will find them.

So it is with asynchronous scheduling. A step is under way; at its end the drafter drafts, for every request,
in the workers. A lookup draft that was made here is verified if it begins with what that step writes
(`RunningRequest.tokens_under_way`); if it does not, the drafter's is. Both are weighed as one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from slipstream.drafting.calibration import Survival
from slipstream.drafting.composer import Offer

UNKNOWN = -1
"""In place of a token that only the workers know. It is never equal to one that was written."""


@dataclass(frozen=True)
class Drafted:
    drafter: str = ""
    passes: int = 0
    seconds: float = 0.0
    survival: Mapping[str, Survival] = field(default_factory=dict)
    """Expected of its tokens, by request."""
    is_probe: bool = False
    """It drafted to see whether it is right now."""
    only_beside_offers: bool = False
    """Its tokens are verified where an offer turns out to be wrong, for requests without an offer never."""

    def cut(self, most: Mapping[str, int]) -> "Drafted":
        """Return what is left if these requests have at most so many tokens verified, and others none."""
        left = {r: survival[: most[r]] for r, survival in self.survival.items() if most.get(r, 0) > 0}
        return replace(self, survival=left)

    def combine(self, offers: dict[str, Offer], under_way: Mapping[str, int]) -> dict[str, Survival]:
        """Return what is expected of the tokens that can be verified, by request: of its offer after the
        tokens under way, and of the drafter's where the offer turns out to be wrong there. Offers that take
        more from the drafter than they bring are removed; from one that stands in only, they take nothing."""
        if not self.survival and not under_way:
            return {request: offer.survival for request, offer in offers.items()}
        combined = {} if self.only_beside_offers else dict(self.survival)
        for request, offer in list(offers.items()):
            skipped = under_way.get(request, 0)
            ours, theirs = offer.survival[skipped:], self.survival.get(request, ())
            aligned = offer.survival[skipped - 1] if skipped and ours else 1.0
            taken = 0.0 if self.only_beside_offers else aligned * sum(theirs)
            if sum(ours) > taken:
                combined[request] = [
                    value + (1 - aligned) * _at(theirs, place) for place, value in enumerate(ours)
                ]
            else:
                del offers[request]
        return combined

    def probe(self, lengths: Mapping[str, int], offers: Mapping[str, Offer], most: int) -> Mapping[str, int]:
        """Return these lengths, and one token for at most so many requests that have none if the drafter was
        to be tried out: what is not verified teaches nothing, as its tokens are not known."""
        if not self.is_probe:
            return lengths
        idle = [request for request in self.survival if not lengths.get(request) and request not in offers]
        return {**lengths, **dict.fromkeys(idle[:most], 1)}

    def draft(self, request: str, skipped: int, length: int) -> Offer:
        """Return so many tokens of the drafter's as a draft."""
        survival = [1.0] * skipped + list(self.survival[request][:length])
        return Offer(self.drafter, [UNKNOWN] * (skipped + length), survival)


NOT_DRAFTED = Drafted()


def _at(survival: Survival, place: int) -> float:
    return float(survival[place]) if place < len(survival) else 0.0
