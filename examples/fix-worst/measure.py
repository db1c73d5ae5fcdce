"""Counts what is wrong in text files: blanks at the end of a line, tabs, lines that are too long.

python3 measure.py FILE-OR-FOLDER          one JSON line for each file
python3 measure.py --sum FILE-OR-FOLDER    one number for all
"""

import json
import sys
from pathlib import Path

LONGEST = 100


def problems(path: Path) -> int:
    lines = path.read_text().split("\n")
    return sum((line != line.rstrip()) + line.count("\t") + (len(line) > LONGEST) for line in lines)


def main(arguments: list[str]) -> None:
    place = Path(arguments[-1])
    files = sorted(place.iterdir()) if place.is_dir() else [place]
    if "--sum" in arguments:
        print(sum(map(problems, files)))
        return
    for file in files:
        print(json.dumps({"path": str(file), "problems": problems(file)}))


main(sys.argv[1:])
