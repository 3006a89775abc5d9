"""Commands that ask once, as agents of each format: the part after a beginning, which sets five variables.

`text` is the input, `now` the time, `agent` the name of this agent; `message` is the question if `first`, else the result.
"""

from typing import Final

IMPORTS: Final = "import datetime, json, os, subprocess, sys, uuid\n"
NOW: Final = "now = datetime.datetime.now(datetime.timezone.utc).isoformat()\n"
SACP: Final = """
status = "clarification_needed" if first else "success"
print(json.dumps({"thought": "", "status": status, "data": {}, "message": message}))
"""
HUMANINLOOP: Final = """
output = {"success": not first, "summary": message, "artifacts": [], "notes": ["n"]}
print(json.dumps({**output, "recommendation": "escalate" if first else "proceed"}))
"""
AGENTOS: Final = """
told = json.loads(text)
back = {**told, "id": f"msg-{uuid.uuid4()}", "timestamp": now, "from": told["to"], "to": told["from"], "replyTo": told["id"]}
back.pop("conversation", None)
back["type"] = "query" if first else "response"
back["payload"] = {**told["payload"], "format": "text", "content": message}
print(json.dumps(back))
"""
SENTIENT: Final = """
told = json.loads(text)
back = {**told, "message_id": str(uuid.uuid4()), "timestamp": {"executed_at": now, "timezone": "UTC"}}
back.pop("conversation", None)
back["agent"] = {"name": agent, "type": "governance"}
back["next_agent"] = {"name": "user" if first else None, "reason": "r"}
back["status"] = {"code": "pending" if first else "success", "message": message}
back["metadata"] = {**told["metadata"], "sequence_number": 2, "parent_message_id": told["message_id"]}
print(json.dumps(back))
"""
