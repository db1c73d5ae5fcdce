#!/bin/sh
# What CI runs.  The first command that fails ends the job.
set -eu
format=text
if [ -n "${GITHUB_ACTIONS:-}" ]; then
  format=github # problems become remarks beside the lines of a pull request
fi
plait check --format "$format" .
plait run flow.yaml --quiet
