"""A linear layer that waits for its numbers."""

from torch import nn


class Linear(nn.Linear):
    """Begins with whatever is in its memory.

    torch's own draws its first numbers from the generator of the whole process. Two threads that ask for that at once
    can wait for each other for ever: one holds the generator while Python collects garbage, the other Python's lock.
    """

    def reset_parameters(self) -> None:
        pass
