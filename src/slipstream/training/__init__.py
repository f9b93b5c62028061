"""Drafters from a target: its own answers, its hidden states, the kinds of drafter trained on them."""
