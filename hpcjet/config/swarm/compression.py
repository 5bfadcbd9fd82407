"""Smaller fragments."""

from enum import Enum


class Compression(Enum):
    """What is done to observations, states and values.

    none: nothing.
    fp16: half precision; half the bytes.
    int8: a byte for each number and a scale for each row (the last axis); about a quarter of the bytes.
    sparse: only numbers that are not 0; exact, and used only where it is smaller.
    """

    none = "none"
    fp16 = "fp16"
    int8 = "int8"
    sparse = "sparse"
