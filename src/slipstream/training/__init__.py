"""Drafters from a target: its own answers, its hidden states, four kinds of drafter trained on them."""
