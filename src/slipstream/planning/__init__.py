"""How much to speculate. So far: what speculation can be expected to give (`prediction`)."""
