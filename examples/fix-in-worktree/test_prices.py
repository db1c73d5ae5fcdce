import unittest

from prices import with_tax


class Prices(unittest.TestCase):
    def test_tax_is_added_to_the_price(self):
        self.assertEqual(with_tax(100, 0.2), 120)
