"""Names of `typing` for annotations that are never evaluated. Loading `typing` itself takes 2 to 4 ms at every start."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any as Any
    from typing import BinaryIO as BinaryIO
    from typing import NoReturn as NoReturn
else:
    Any = BinaryIO = NoReturn = object
