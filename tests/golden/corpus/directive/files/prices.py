"""Prices with tax."""


def with_tax(price, rate):
    return price * rate


def total(prices, rate=0.2):
    return sum(with_tax(price, rate) for price in prices)
