"""For passes.py: it runs in the server."""

from slipstream.engine import profile
from slipstream.engine.worker import CPUWorker

profile.COUNTS = (*range(72, 0, -1),)  # type: ignore[assignment]
profile.ROUNDS = 12


class EveryCountWorker(CPUWorker):
    """Measures more, and more often, before it serves."""
