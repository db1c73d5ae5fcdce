"""Replace the text of $OLD by that of $NEW in a file."""

import os
import sys
from pathlib import Path

page = Path(sys.argv[1])
page.write_text(page.read_text().replace(os.environ["OLD"], os.environ["NEW"]))
