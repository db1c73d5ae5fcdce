"""Names of `typing` that mean something to type checkers only.

A command that calls one tool has better things to do than to load `typing`,
which takes it as long as ten modules of ours.  So what it loads takes these
names from here: to a type checker they are those of `typing`, and when the
program runs they stand for nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO as IO
    from typing import Any as Any
    from typing import BinaryIO as BinaryIO
    from typing import ClassVar as ClassVar
    from typing import Final as Final
    from typing import Literal as Literal
    from typing import NoReturn as NoReturn
    from typing import Protocol as Protocol
    from typing import TextIO as TextIO
    from typing import TypeAlias as TypeAlias
    from typing import TypeGuard as TypeGuard
    from typing import TypeVar as TypeVar
    from typing import cast as cast
else:

    class Any:
        """Stands for whatever a hint says."""

        def __class_getitem__(cls, _):
            return cls

    class Protocol:
        """A base that brings nothing along."""

    def TypeVar(_):
        return Any

    def cast(_, value):
        return value

    ClassVar = Final = Literal = NoReturn = TypeAlias = TypeGuard = IO = BinaryIO = TextIO = Any
