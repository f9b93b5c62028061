"""Whether a drafter's tokens are its likeliest or drawn from its distribution, by what is accepted.

With p of the target and q of the drafter at a request's temperature, the drafter's likeliest token x is
accepted with probability p(x), a drawn one with the sum over all tokens of min(p, q). Which is more depends
on both models and on the temperature.
"""

from bisect import bisect
from collections import Counter
from collections.abc import Mapping

BANDS = (0.5, 0.9)  # temperatures
EXPLORED = 1 / 8  # of the requests, with the way that seems worse
FADE = 1 - 1 / 1000  # per draft: an old count is forgotten, so a change of traffic is followed
GOLDEN = 0.618034  # its multiples fill the unit interval evenly, in step with no rhythm of the requests


class DraftSampling:
    """Chooses for each request when it begins, by bands of temperature."""

    ENOUGH = 100  # judged tokens of each way before one is preferred

    def __init__(self) -> None:
        self._requests: Counter[int] = Counter()
        """By band."""
        self._chosen: dict[str, tuple[int, bool]] = {}
        """Band and whether argmax, by request."""
        self._counts = {(b, argmax): (0.0, 0.0) for b in range(len(BANDS) + 1) for argmax in (False, True)}
        """(accepted, judged)"""

    def choose_argmax(self, temperatures: Mapping[str, float]) -> list[str]:
        """Return those of the requests with these temperatures whose drafts are to be argmax. Greedy requests
        are left out: their drafts are argmax anyway."""
        for request_id, temperature in temperatures.items():
            if temperature and request_id not in self._chosen:
                band = bisect(BANDS, temperature)
                self._chosen[request_id] = band, self._choose(band)
        return [request_id for request_id in temperatures if self._chosen.get(request_id, (0, False))[1]]

    def _choose(self, band: int) -> bool:
        """Return whether the next request of the band has argmax drafts."""
        self._requests[band] += 1
        known = min(self._counts[band, argmax][1] for argmax in (False, True)) >= self.ENOUGH
        explores = self._requests[band] * GOLDEN % 1 < (EXPLORED if known else 0.5)
        return (self._rate(band, True) > self._rate(band, False)) != explores

    def _rate(self, band: int, argmax: bool) -> float:
        accepted, judged = self._counts[band, argmax]
        return accepted / max(judged, 1.0)

    def learn(self, request_id: str, verified: int, accepted: int) -> None:
        """Learn that so many of the drafter's tokens were verified and so many of them accepted."""
        if chosen := self._chosen.get(request_id):
            before, judged = self._counts[chosen]
            self._counts[chosen] = FADE * before + accepted, FADE * judged + min(verified, accepted + 1)

    def forget(self, request_id: str) -> None:
        self._chosen.pop(request_id, None)

    def report(self) -> dict[str, dict[str, float]]:
        """Return what share of the judged tokens was accepted, by the temperature from which a band is."""
        found: dict[str, dict[str, float]] = {}
        for (band, argmax), (_, judged) in self._counts.items():
            if judged:
                rates = found.setdefault(f"from {(0, *BANDS)[band]}", {})
                rates["argmax" if argmax else "sampled"] = round(self._rate(band, argmax), 4)
        return found
