"""nats-py's JetStream client on one connection of the link: what it raises, in terms of the link."""

import nats.errors
import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, ConsumerInfo, PubAck, RawStreamMsg, StreamConfig, StreamInfo

from aghbus.daemon.nats.events import BadPublish, JetStreamError, LinkDown, LinkError, LinkTimeout, NoJetStream
from aghbus.protocol.base.text import escape, shorten

__all__ = [
    "MESSAGE_NOT_FOUND",
    "ConsumerConfig",
    "ConsumerInfo",
    "JetStreamContext",
    "PubAck",
    "RawStreamMsg",
    "StreamConfig",
    "StreamInfo",
    "refusal",
    "translate_error",
]

MESSAGE_NOT_FOUND = 10037
_NOT_ENABLED = frozenset({10039, 10076})  # for the account, on the server (nats-server's errors.json)
_MAX_DESCRIPTION = 300  # characters of a server's description that are shown


def refusal(code: int, description: str) -> JetStreamError:
    """The JetStreamError for the error `code` of nats-server (its file errors.json) and its description."""
    description = shorten(escape(description or "unknown error"), _MAX_DESCRIPTION)
    return NoJetStream(description) if code in _NOT_ENABLED else JetStreamError(code, description)


def translate_error(error: BaseException) -> JetStreamError | LinkError:
    """The JetStreamError or LinkError for an exception of the client library."""
    match error:
        case LinkError() | JetStreamError():
            return error
        case nats.errors.NoRespondersError() | nats.js.errors.NoStreamResponseError():
            return NoJetStream()
        case nats.js.errors.ServiceUnavailableError(err_code=None):
            return NoJetStream()
        case nats.js.errors.NotFoundError(err_code=None):  # the answer to a direct get
            return JetStreamError(MESSAGE_NOT_FOUND, "no such message")
        case nats.js.errors.APIError():
            return refusal(error.err_code or 0, error.description or "")
        case nats.errors.TimeoutError():
            return LinkTimeout("no answer from JetStream in time")
        case nats.errors.BadSubjectError() | nats.errors.BadHeaderError():
            return BadPublish(str(error))
        case nats.errors.Error():
            return LinkDown(str(error))
    return JetStreamError(0, f"an answer of JetStream is not understood: {escape(repr(error))}")
