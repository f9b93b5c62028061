"""Measuring: arms as real servers that take turns under real load, and what their numbers say."""
