"""Areas of shapes."""


def square(side):
    return side * side
