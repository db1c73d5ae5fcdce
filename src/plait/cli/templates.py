"""What `plait new` writes: one file of each kind, short, with comments, ready to run or check."""

from __future__ import annotations

from plait.core.hints import Final

WORKFLOW: Final = """\
# A workflow: its steps run in order.  A value is data, never code.
name: {name}
description: Greet somebody on this day

parameters:
  who: {type: string, default: world, description: Who is greeted}

steps:
  - shell: date +%A
    capture_output: day
  - shell: echo "Hello ${who}, it is ${day}"
"""

MAP: Final = """\
# A map: the same steps for each item, in parallel.  An item that fails stops no other one.
name: {name}
description: Count the lines of files

map:
  input: {glob: "*.yaml"}
  max_parallel: 4
  steps:
    - shell: wc -l ${item.path}

reduce:
  - shell: echo "${map.successful} of ${map.total} files counted"
"""

GRAPH: Final = """\
# A graph: a node runs, assigns to the state, and follows the first edge whose condition holds.
name: {name}
description: Count to a limit

inputs:
  limit: {type: integer, default: 3, description: Where to stop}

start: count
state: {number: 0}

nodes:
  count:
    shell: echo $(( ${state.number} + 1 ))
    assign: {number: "${result.stdout}"}
    next:
      - {to: done, when: "${state.number} >= ${inputs.limit}"}
      - to: count

  done:
    output: counted to ${state.number}
"""

DIRECTIVE: Final = """\
---
description: Review one file
inputs:
  file: {type: string, default: README.md, description: The file to review}
permissions: [core/file/read, core/file/search]
limits: {turns: 6, spend: 0.25}
---
Read {input:file}. Say in three lines what it does, and what to improve first.
"""

ENSEMBLE: Final = """\
# An ensemble: tasks of tools and agents; a task starts when the tasks in its context are done.
name: {name}
description: List the files of a folder, and describe it

inputs:
  folder: {type: string, default: ., description: The folder to describe}

agents:
  writer: {role: Writer, goal: "Describe {folder} to a new colleague"}

tasks:
  - id: files
    description: List the files of {folder}
    tool: core/file/list
    params: {path: "${inputs.folder}"}
  - id: page
    description: Describe {folder} by its files
    expected_output: One paragraph
    agent: writer
    context: [files]
"""

HOOKS: Final = """\
# The hooks of this project: each reacts to an event of every run here.
hooks:
  - id: notify
    event: run_failed
    description: Note each failed run in a file; send a message here instead
    action:
      tool: core/shell
      params:
        command: echo "failed ${error.message}" >> failed-runs.txt
"""

PROVIDER: Final = """\
# A model provider: what is not written here is that of the provider it extends.
# Use it with `provider: {name}` in a flow, or with PLAIT_PROVIDER={name}.
description: A server that speaks like OpenAI
extends: openai
base_url: https://models.example.org/v1
auth: {env: EXAMPLE_API_KEY}
default_model: large
models: {large: example-large-2}
prices: {example-large-2: {input: 1.5, output: 6}}
"""

SETTINGS: Final = """\
# The settings of this project.

# project: tools and flows of this project run where the user trusts the project.
# signed:  they run only where the user trusts a key that signed them (plait sign --all).
trust: project
"""
