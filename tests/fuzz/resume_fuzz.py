"""Random flows that are killed, edited, resumed and retried: does each run end as if none of that had happened?

    python tests/fuzz/resume_fuzz.py --runs 2000 --seed 1
    python tests/fuzz/resume_fuzz.py --runs 1 --seed 1234      one story, with its log

Each run is a story of a flow, by the number that follows: tests/model has the stories and the rules.
The engine and its journal are the real ones; commands are simulated, and a death is simulated in the journal.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from model.story import run_story


def run(runs: int, seed: int) -> tuple[int, int]:
    """Return the number of run attempts, and the number of stories that broke a rule."""
    run_attempts = wrong = 0
    for number in range(seed, seed + runs):
        with tempfile.TemporaryDirectory(prefix="plait-resume-") as folder:
            home = os.path.join(folder, "home")
            os.environ |= {"HOME": home, "USER_SPACE": home}
            story = run_story(Path(folder, "project"), number)
            run_attempts += story.run_attempts
            if story.found:
                wrong += 1
                print(f"seed {number}:", *story.found, "where", *story.lines, sep="\n  ")
                print(Path(folder, "project/flow.yaml").read_text())
            elif runs == 1:
                print(*story.lines, sep="\n")
    return run_attempts, wrong


def main() -> None:
    options = argparse.ArgumentParser(
        description="Kill, edit and resume random flows; compare with a model."
    )
    options.add_argument("--runs", type=int, default=2_000)
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    run_attempts, wrong = run(chosen.runs, chosen.seed)
    print(
        f"resume_fuzz: {chosen.runs:,} stories of {run_attempts:,} run attempts, seed {chosen.seed}: {wrong} wrong"
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
