"""JetStream's own API, spoken over the link: requests in JSON, answers with a result or an error code.

The client library's JetStream context lives on one of its connections; ours come and go, so that only plain requests are used.

JetStreamError           the server refused; its error code and its words
 └─ NoJetStream          there is no JetStream for us on this server
"""

import asyncio
import itertools
import secrets
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from aghbus.daemon.nats.link import InboundMessage, Link, LinkDown, LinkTimeout
from aghbus.protocol.nats.names import inbox
from aghbus.protocol.text import escape, shorten

PREFIX: Final = "$JS.API"
"""Subjects of the API in an account of its own; domains and imports under another prefix are not used."""

STREAM_NOT_FOUND: Final = 10059
STREAM_EXISTS: Final = 10058
CONSUMER_NOT_FOUND: Final = 10014
MESSAGE_NOT_FOUND: Final = 10037
NOT_ENABLED: Final = frozenset({10039, 10076})  # for the account, on the server
"""Error codes of nats-server (its file errors.json)."""

_WAIT: Final = 5.0  # seconds for an answer; the client library's own default
_WORDS: Final = 300  # characters of a server's description that are shown

_encode = msgspec.json.encode
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


class JetStreamError(Exception):
    """The server refused: `code` is JetStream's own error code (0 when it gave none), the text its description."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(description)
        self.code = code


class NoJetStream(JetStreamError):
    """Nobody answers JetStream requests here, or it is not enabled for our account."""

    def __init__(self, description: str = "the NATS server has no JetStream") -> None:
        super().__init__(0, description)


def read_error(error: Mapping[str, Any]) -> JetStreamError:
    """The `error` object of an answer as an exception; its words escaped."""
    code = int(error.get("err_code", 0))
    words = shorten(escape(str(error.get("description", "unknown error"))), _WORDS)
    return NoJetStream(words) if code in NOT_ENABLED else JetStreamError(code, words)


class JetStreamApi:
    """Requests over one link, with headers if need be; as many at a time as the caller likes."""

    def __init__(self, link: Link, us: str) -> None:
        """`us` is the peer whose inbox the answers come to."""
        self._link = link
        self._root = f"{inbox(us, 'api')}.{secrets.token_hex(12)}"
        self._waiting: dict[str, asyncio.Future[InboundMessage]] = {}
        self._numbers = itertools.count(1)
        self._answers = link.subscribe(f"{self._root}.*", self._answered)

    async def call(self, what: str, ask: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The JSON answer to `$JS.API.<what>`. Raises JetStreamError, LinkError."""
        message = await self.request(f"{PREFIX}.{what}", b"" if ask is None else _encode(ask))
        return read_answer(message)

    async def request(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None, timeout: float = _WAIT
    ) -> InboundMessage:
        """The first reply to a request. Raises NoJetStream when nobody is there to answer, LinkError (at once when the link
        is lost)."""
        if not self._answers.attached:
            await self._link.flush(timeout)  # made a moment ago; the answer must not be faster than the subscription
        reply = f"{self._root}.{next(self._numbers)}"
        answer: asyncio.Future[InboundMessage] = asyncio.get_running_loop().create_future()
        self._waiting[reply] = answer
        try:
            loss = self._link.loss
            await self._link.publish(subject, data, headers, reply)
            ends: set[asyncio.Future[Any]] = {answer, loss}
            await asyncio.wait(ends, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._waiting[reply]
        if not answer.done():
            if loss.done():
                raise LinkDown(f"the NATS link was lost before JetStream answered: {loss.result()}")
            raise LinkTimeout(f"no answer from JetStream within {timeout:g} s")
        message = answer.result()
        if message.headers and message.headers.get("Status") == "503" and not message.data:
            raise NoJetStream
        return message

    async def close(self) -> None:
        """Ends the subscription for answers."""
        await self._answers.unsubscribe()

    def _answered(self, message: InboundMessage) -> None:
        waiting = self._waiting.get(message.subject)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)


def read_answer(message: InboundMessage) -> dict[str, Any]:
    """The JSON object of an answer. Raises JetStreamError for an error in it, or for anything else."""
    try:
        answer = _decode(message.data)
    except msgspec.DecodeError:
        raise JetStreamError(0, "an answer of JetStream is not JSON") from None
    if isinstance(error := answer.get("error"), dict):
        raise read_error(error)
    return answer
