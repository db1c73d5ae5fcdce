"""Random flows with names in every place: does check refuse those, and only those, that no run can know there?

    python tests/fuzz/names_fuzz.py --runs 2000 --seed 1
    python tests/fuzz/names_fuzz.py --runs 1 --seed 1234      one flow, shown

Each run is a flow, by the number that follows: see tests/agreement for how it is written and compared.
A refused name that a run knows is always a bug.  An accepted name that no run knows may be out of reach
behind other unknown names: a few of these are shown, and are no failure.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from agreement.comparison import compare_names

ENOUGH = 300
EXACT = "is refused, and a run knows it"
FEW = 100
"""Out of this many flows, one may have a placeholder that no world reached."""


def run(runs: int, seed: int) -> tuple[int, int, int]:
    """Return the number of placeholders, and of flows in which check and runs disagree: surely, and perhaps."""
    places = wrong = perhaps = 0
    with tempfile.TemporaryDirectory(prefix="plait-names-") as folder:
        for number in range(seed, seed + runs):
            comparison = compare_names(number, Path(folder), enough=ENOUGH)
            places += comparison.places
            if comparison.found:
                is_exact = any(line.endswith(EXACT) for line in comparison.found)
                wrong, perhaps = wrong + is_exact, perhaps + (not is_exact)
                print(f"seed {number}:", *comparison.found, "where", sep="\n  ")
            if comparison.found or runs == 1:
                print(comparison.text)
    return places, wrong, perhaps


def main() -> None:
    options = argparse.ArgumentParser(
        description="Hold what check says of names against what runs know."
    )
    options.add_argument("--runs", type=int, default=1_000)
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    places, wrong, perhaps = run(chosen.runs, chosen.seed)
    found = f"{wrong} wrong, {perhaps} to be looked at"
    print(f"names_fuzz: {chosen.runs:,} flows, {places:,} places, seed {chosen.seed}: {found}")
    sys.exit(1 if wrong or perhaps > chosen.runs / FEW else 0)


if __name__ == "__main__":
    main()
