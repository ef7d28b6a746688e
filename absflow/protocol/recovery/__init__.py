"""From the facts of earlier drivers to what a start does: attempts, branches, restores."""
