"""Charts as plain data, and what draws them: in a page, and as SVG without one. Layer 5."""
