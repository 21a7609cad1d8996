"""Which account a call belongs to. As in ministack, twelve digits for an access key are that account's; others see nothing of it.

ministack keeps the account of a request in a context variable, which follows it into the threads that provision its stacks.
The functions here read and set that variable, so that what the local cloud adds lies in the same account.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from local.cloud import REGION

_ROOT = re.compile(r"\d{12}")
# Every account that was ever named: the leak check looks into all of them.
_seen: set[str] = set()


def current() -> str:
    """The account of the request, or of the stack operation, that is being worked on."""
    # Imported late: ministack reads its settings when it is imported.
    from ministack.core.responses import get_account_id

    found: str = get_account_id()
    _seen.add(found)
    return found


def set_by(access_key: str) -> None:
    """Work on behalf of an access key until the current context ends; a session's key belongs to its role's account."""
    from ministack.core.responses import set_request_account_id

    set_request_account_id(access_key)
    current()


@contextmanager
def acting_as(account: str) -> Iterator[None]:
    """Work on behalf of an account: for what no request has set off, such as a timer."""
    from ministack.core.responses import request_scope

    with request_scope(account, REGION):
        yield


def seen() -> list[str]:
    """The accounts that calls were made for."""
    return sorted(_seen.copy())


def is_root(access_key: str) -> bool:
    """Whether an access key is an account's own."""
    return bool(_ROOT.fullmatch(access_key))
