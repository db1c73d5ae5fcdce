"""The five profiles: which placeholders are live where, and what a missing name means."""

from __future__ import annotations

from plait.core.errors import InputError, closest_name
from plait.core.hints import Final, Literal
from plait.core.records import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """`typed`: a template that is one placeholder keeps the type of its value."""

    name: str
    context: bool = False
    bare: bool = False
    inputs: bool = False
    env: bool = False
    braces: Literal["prompt", "param"] | None = None
    typed: bool = True
    missing_context: Literal["keep", "empty"] = "keep"
    always_strict: bool = False


PROFILES: Final[dict[str, Profile]] = {
    profile.name: profile
    for profile in (
        Profile("prompt", braces="prompt", typed=False, always_strict=True),
        Profile("directive", inputs=True, typed=False),
        Profile("graph", context=True, inputs=True, missing_context="empty"),
        Profile("workflow", context=True, bare=True),
        Profile("config", env=True, braces="param"),
    )
}


def profile_named(name: str) -> Profile:
    profile = PROFILES.get(name) if isinstance(name, str) else None
    if profile is None:
        guess = closest_name(str(name), PROFILES)
        raise InputError(
            f"there is no profile '{name}'",
            fix=(f"did you mean '{guess}'? " if guess else "") + f"profiles: {', '.join(PROFILES)}",
            code="unknown-profile",
        )
    return profile
