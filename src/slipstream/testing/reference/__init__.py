"""The mathematics of accepting draft tokens: exact, slow, and readable. The engine does not run it; it is
what the engine, and `slipstream verify`, are held against."""
