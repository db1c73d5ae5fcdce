"""Random flows with names in every place: does check refuse those, and only those, that no run can know there?

    python tests/fuzz/names_fuzz.py --runs 2000 --seed 1
    python tests/fuzz/names_fuzz.py --runs 1 --seed 1234      one flow, shown

Each run is a flow, by the number that follows: see tests/agreement for how it is written and judged.
That a name is refused which a run knows is exact. That one is accepted which no run knows may mean that no
world came to its place, behind other names that are wrong: a few of those are shown, and are no failure.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from agreement.verdict import judged

ENOUGH = 300
EXACT = "is refused, and a run knows it"
FEW = 100
"""Of so many flows one may have a place to which no world came."""


def run(runs: int, seed: int) -> tuple[int, int, int]:
    """How many places were judged, and in how many flows check and runs did not agree: surely, perhaps."""
    places = wrong = perhaps = 0
    with tempfile.TemporaryDirectory(prefix="plait-names-") as folder:
        for number in range(seed, seed + runs):
            verdict = judged(number, Path(folder), enough=ENOUGH)
            places += verdict.judged
            if verdict.found:
                is_exact = any(line.endswith(EXACT) for line in verdict.found)
                wrong, perhaps = wrong + is_exact, perhaps + (not is_exact)
                print(f"seed {number}:", *verdict.found, "where", sep="\n  ")
            if verdict.found or runs == 1:
                print(verdict.text)
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
