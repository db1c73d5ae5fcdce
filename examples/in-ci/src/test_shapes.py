import unittest

from shapes import square


class Shapes(unittest.TestCase):
    def test_square(self):
        self.assertEqual(square(3), 9)
