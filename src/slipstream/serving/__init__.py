"""Servers of a comparison, their step records, and a client for them: for `bench`, `tune` and `verify`."""
