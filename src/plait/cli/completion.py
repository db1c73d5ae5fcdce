"""`plait completion`: print a shell script that completes commands, options, ids and parameters."""

from __future__ import annotations

import sys

from plait.cli.arguments import require_choice
from plait.core.hints import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser

EXAMPLES: Final = (
    'plait completion bash >> ~/.bashrc      or: eval "$(plait completion bash)"',
    "plait completion fish > ~/.config/fish/completions/plait.fish",
)

BASH: Final = """\
# Completion of plait for bash.
_plait() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        line=${line%%$'\\t'*}
        if [[ $line == :files && $2 == @* ]]; then
            compopt -o filenames -o nospace
            while IFS= read -r line; do COMPREPLY+=("@$line"); done < <(compgen -f -- "${2#@}")
        elif [[ $line == :files ]]; then
            compopt -o default
        else
            [[ $line == *= ]] && compopt -o nospace
            COMPREPLY+=("$line")
        fi
    done < <(command plait __complete --bash "${COMP_LINE:0:COMP_POINT}" "$2" 2>/dev/null)
}
complete -F _plait plait
"""

ZSH: Final = """\
#compdef plait
# Completion of plait for zsh.
_plait() {
    local line
    local -a typed=("${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}") names shown
    for line in "${(@f)$(command plait __complete "${typed[@]}" 2>/dev/null)}"; do
        if [[ $line == :files ]]; then
            compset -P '(@|*=)'
            _files
        elif [[ $line == *= ]]; then
            compadd -S '' -- "$line"
        elif [[ -n $line ]]; then
            names+=("${line%%$'\\t'*}")
            shown+=("${line/$'\\t'/  -- }")
        fi
    done
    compadd -l -V plait -d shown -a names
}
if [[ ${funcstack[1]} == _plait ]]; then
    _plait "$@"
else
    (( ${+functions[compdef]} )) || { autoload -Uz compinit && compinit -u; }
    compdef _plait plait
fi
"""

FISH: Final = """\
# Completion of plait for fish.
function __plait_complete
    set -l current (commandline -ct)
    set -l words (commandline -opc)[2..] (string unescape -- "$current"; or echo "$current")
    for line in (command plait __complete $words 2>/dev/null)
        if test "$line" != :files
            printf '%s\\n' $line
        else if string match -q '@*' -- $current
            printf '@%s\\n' (complete -C "'' "(string sub -s 2 -- $current))
        else
            complete -C "'' $current"
        end
    end
end
complete -c plait -f -a '(__plait_complete)'
"""

SCRIPTS: Final = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def configure(parser: Parser) -> None:
    parser.add_argument("shell", metavar="SHELL", help="bash, zsh or fish")


def run(options: argparse.Namespace) -> int:
    sys.stdout.write(SCRIPTS[require_choice("shell", options.shell, tuple(SCRIPTS))])
    return 0
