"""Small files from the Hugging Face hub, from the local cache where they are there."""

from functools import cache
from pathlib import Path

from slipstream.errors import CheckpointError

# Set after the first failed connection: huggingface_hub retries for some 20 seconds per file.
_unreachable = False


def is_unreachable() -> bool:
    """Return whether a connection has failed; False too as long as none was tried."""
    return _unreachable


@cache
def fetch(repo: str, filename: str, revision: str | None) -> Path | None:
    """Return the local path of one file, downloaded if it is not cached; None if the repository has none."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    global _unreachable
    try:
        cached = try_to_load_from_cache(repo, filename, revision=revision)
        if isinstance(cached, str):
            return Path(cached)
        if cached is not None:  # the hub has said before that there is no such file
            return None
        return Path(hf_hub_download(repo, filename, revision=revision, local_files_only=_unreachable))
    except LocalEntryNotFoundError:
        _unreachable = True
        if filename != "config.json":
            return None
        raise CheckpointError(
            f"{repo}: no such folder, not in the Hugging Face cache, and the hub cannot be reached. "
            "Download it first (hf download) or give a folder."
        ) from None
    except GatedRepoError:
        raise CheckpointError(
            f"{repo}: gated on the hub; ask for access and log in (hf auth login)."
        ) from None
    except RepositoryNotFoundError:
        raise CheckpointError(
            f"{repo}: no such folder, and no such model on the hub (a private one needs hf auth login)."
        ) from None
    except HFValidationError:
        raise CheckpointError(f"{repo}: no such folder, and not a Hugging Face id.") from None
    except EntryNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{repo}: {filename} cannot be fetched: {error}") from None


def list_files(repo: str, revision: str | None) -> list[str]:
    """Return names of a repository's files; empty if the hub cannot be asked."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    if _unreachable:
        return []
    try:
        return list(HfApi().list_repo_files(repo, revision=revision))
    except (HfHubHTTPError, OSError):
        return []


@cache
def num_parameters(repo: str, revision: str | None) -> int | None:
    """Return numbers in a repository's safetensors files, from their headers; None if the hub cannot tell."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, NotASafetensorsRepoError, SafetensorsParsingError

    if _unreachable:
        return None
    try:
        metadata = HfApi().get_safetensors_metadata(repo, revision=revision)
    except (HfHubHTTPError, NotASafetensorsRepoError, SafetensorsParsingError, OSError):
        return None
    return sum(metadata.parameter_count.values()) or None


def cached_models() -> list[str]:
    """Return ids of the models in the local cache."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        cache_info = scan_cache_dir()
    except CacheNotFound:
        return []
    return sorted(repo.repo_id for repo in cache_info.repos if repo.repo_type == "model")
