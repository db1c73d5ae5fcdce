import unittest

from words import count


class Words(unittest.TestCase):
    def test_blanks_do_not_count(self):
        self.assertEqual(count("  two   words "), 2)
