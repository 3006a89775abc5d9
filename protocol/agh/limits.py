"""The limits of the protocol, each with its unit and source. Limits without a section are not in the specification."""

from typing import Final

PROTOCOL: Final = "agh-network/v0"  # spec section 1, the only accepted value of `protocol`
SUBJECT_PREFIX: Final = "agh.network.v0"  # spec section 7, the only prefix in use

MAX_ENVELOPE_BYTES: Final = 1_048_576  # spec section 1, serialized
MAX_ID_BYTES: Final = 256  # spec section 1: id, reply_to, trace_id, causation_id
MAX_WORK_ID_BYTES: Final = 128  # spec section 1, on receipt; our own are far shorter
MAX_WORKSPACE_BYTES: Final = 256  # one token of a NATS subject, whose line is 4096 bytes by default
MAX_DEPTH: Final = 128  # nested arrays and objects: far above real envelopes, far below the decoder's limit
MAX_CONTAINERS: Final = 65_536  # arrays and objects of one envelope: 16 bytes each in the largest
MAX_NUMBERS: Final = 262_144  # of one envelope: 4 bytes each in the largest
MAX_DOUBLES: Final = 65_536  # fractions and exponents of numbers; 58 000 numbers of full precision fill an envelope
MAX_LIST_ITEMS: Final = 10_000  # entries of one array of a body; a full envelope of empty strings has 350 000
MAX_CARD_ENTRY_BYTES: Final = 1_024  # one entry of a Peer Card list or a display name
MAX_SUMMARY_BYTES: Final = 4_096  # of a one-line summary that we write

REPLAY_AGE: Final = 300  # seconds, spec section 5 step 3
MAX_LIFETIME: Final = 7 * 86_400  # seconds after `ts`, spec section 5 step 3
DIRECTED_TTL: Final = 86_400  # seconds, spec section 7: default life of a directed message
BROADCAST_TTL: Final = 300  # seconds, spec section 7: default life of broadcast conversation
GREET_INTERVAL: Final = 30  # seconds, spec section 7: presence
MAX_SECONDS: Final = 2**63 - 1  # Unix seconds: a signed 64-bit integer
