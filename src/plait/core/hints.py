"""Names of `typing` for type checkers, without loading `typing`.

Loading `typing` takes as long as ten of our modules. Type checkers see the names of `typing` here;
at run time they are placeholders without a meaning.
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
        """Stands for any hint at run time."""

        def __class_getitem__(cls, _):
            return cls

    class Protocol:
        """A base class without contents."""

    def TypeVar(_):
        return Any

    def cast(_, value):
        return value

    ClassVar = Final = Literal = NoReturn = TypeAlias = TypeGuard = IO = BinaryIO = TextIO = Any
