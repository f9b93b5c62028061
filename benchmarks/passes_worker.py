"""For passes.py: it runs in the server."""

from slipstream.engine.worker import pass_profile
from slipstream.engine.worker.worker import CPUWorker

pass_profile.FINE = pass_profile.Passes(tuple(range(72, 0, -1)), 12)
pass_profile.MOST_SECONDS = float("inf")


class EveryCountWorker(CPUWorker):
    """Measures more, and more often, before it serves."""
