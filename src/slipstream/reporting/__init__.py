"""What reports share: pages, charts, and the metadata of a run."""
