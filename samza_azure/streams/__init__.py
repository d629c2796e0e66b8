"""What may be read next, and how event time moves. Pure: no clock, no dice, no input or output."""
