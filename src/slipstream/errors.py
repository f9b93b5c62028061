"""The errors Slipstream raises on purpose. Each says what was given, what is allowed, what to do."""


class SlipstreamError(Exception):
    """Anything that the user can fix; the command line prints it without a traceback."""


class ConfigError(SlipstreamError, ValueError):
    """An option that is unknown, out of range, or contradicts another."""


class CheckpointError(SlipstreamError):
    """A model that is not there or cannot be read."""


class SetupError(SlipstreamError, RuntimeError):
    """A set-up that would fail or mislead if it were started."""


class EngineMissingError(SlipstreamError, ImportError):
    """vLLM is not installed, or is a version that this Slipstream does not know."""
