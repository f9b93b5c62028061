"""Prompts for measuring, verifying and training: shipped ones, datasets and files of the user's."""
