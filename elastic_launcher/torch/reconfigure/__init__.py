"""The way from one generation to the next: resize, recovery, handing over state."""
