"""Tools: find them, check them, bind them to what a primitive needs; start nothing.

Reading order: `spaces` (where files are), `beneath` (opening them safely),
`items` and `readers` (what they say), `chain` and `rules` (what runs what),
`trust` (who vouches), `environment`, `anchors`, `config` (what they get), and
`invocation` (everything put together).
"""
