"""Who leads, who is alive, who runs what: what to do next. Pure: no clock, no dice, no input or output."""
