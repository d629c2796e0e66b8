"""The record, who may append it, and how it is read again. Pure: no clock, no dice, no input or output."""
