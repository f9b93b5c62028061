"""Every place where vLLM is changed rather than used. Each says why, and for which vLLM it holds.

Preferred, in this order: an official hook, a subclass by dotted path, a patch here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def when_configured(tell: Callable[[Any], None]) -> Iterator[None]:
    """Call `tell(vllm_config)` once, as soon as vLLM has settled its configuration.

    Why: only then is it known which runner and scheduler will run, and the user should read it before
    the weights load. vLLM 0.32 has a hook for this only in AsyncLLM (a stat-logger plugin), and that
    turns statistics on for every vLLM in the environment, ours or not.
    """
    from vllm.engine.arg_utils import EngineArgs

    original = EngineArgs.create_engine_config
    told = False

    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal told
        vllm_config = original(self, *args, **kwargs)
        if not told:
            told = True
            tell(vllm_config)
        return vllm_config

    EngineArgs.create_engine_config = create_engine_config
    try:
        yield
    finally:
        EngineArgs.create_engine_config = original
