"""Drafters from a target: its own answers, its hidden states, the drafters that are trained on them."""
