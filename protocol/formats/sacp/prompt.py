"""The instructions that make a language model answer in SACP (seed section 3.1), to append to a system prompt."""

from typing import Final

# The protocol template of section 3.1, verbatim: it is normative.
RESPONSE_FORMAT: Final = """\
### SYSTEM PROTOCOL: RESPONSE FORMAT INSTRUCTIONS
You are a highly organized AI agent integrated into a larger workflow.
CRITICAL: You MUST provide your response in a valid JSON format.
DO NOT include any text outside the JSON block.
DO NOT use markdown code blocks (```json ... ```) unless specifically asked, but the raw response MUST be parseable JSON.

Your response schema is:
{
    "thought": "Your reasoning process here...",
    "status": "success" | "failure" | "clarification_needed",
    "data": {
        "key": "value"
        // Any structured data extracted or generated
    },
    "message": "The final human-readable answer."
}

Example:
{
    "thought": "I need to calculate the sum. 5+5 is 10.",
    "status": "success",
    "data": { "result": 10 },
    "message": "The result is 10."
}
"""
