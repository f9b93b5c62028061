"""Recording what a run offered and took, as numbers only, and replaying it under another policy or cost."""
