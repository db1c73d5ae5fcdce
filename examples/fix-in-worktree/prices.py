"""Prices with tax."""


def with_tax(price, rate):
    return round(price * rate, 2)
