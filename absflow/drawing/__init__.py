"""HTML and SVG for people: of the checkpoint page, and of what a notebook shows. Plain Python."""
