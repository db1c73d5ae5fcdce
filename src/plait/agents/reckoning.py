"""How many tokens a question and an answer have, about: by the length of what was said.

A model counts in its own way, and mostly says how many there were.  This is for what has to be known
before it is asked, and for what nobody counted; it says rather too many than too few.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.agents.messages import Answer, Ask, Usage
from plait.core.hints import Final
from plait.core.records import replace
from plait.core.values import json_text

BYTES_OF_A_TOKEN: Final = 3
"""Rather too few than too many: most texts have about four."""
TOKENS_OF_A_MESSAGE: Final = 4
"""For the marks around it."""


def question_tokens(ask: Ask) -> int:
    """About as many tokens as a question takes."""
    said = [ask.system, *(message.text for message in ask.messages)]
    said += [json_text(use.arguments) for message in ask.messages for use in message.uses]
    said += [json_text([tool.name, tool.description, tool.schema]) for tool in ask.tools]
    if ask.schema is not None:
        said.append(json_text(ask.schema))
    return _tokens(said) + TOKENS_OF_A_MESSAGE * len(ask.messages)


def answer_tokens(answer: Answer) -> int:
    """About as many tokens as an answer, or half of one, took; none, if nothing was said."""
    if answer.blocks is not None:  # all of it, with what the model thought
        return _tokens([json_text(answer.blocks)])
    return _tokens([answer.text, *(json_text([use.name, use.arguments]) for use in answer.uses)])


def with_estimate(answer: Answer, ask: Ask, *, broke_off: bool = False) -> Usage:
    """What an answer took, with an estimate of what its server did not count.

    Of one that broke off a server has counted what there was at the beginning, if anything.
    """
    usage, said = answer.usage, answer_tokens(answer)
    question = usage.input or question_tokens(ask)
    output = max(usage.output, said) if broke_off else usage.output or said
    estimated = question + output - usage.tokens
    return replace(usage, input=question, output=output, estimated=estimated) if estimated else usage


def _tokens(said: Sequence[str]) -> int:
    return -(-sum(len(text.encode("utf-8", "surrogatepass")) for text in said) // BYTES_OF_A_TOKEN)
