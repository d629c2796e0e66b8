"""What to do next, and how it is written down. Pure: no clock, no dice, no input or output."""
