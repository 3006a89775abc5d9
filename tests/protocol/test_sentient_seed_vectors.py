"""The committed examples of the seeds are complete, and only examples are extracted."""

from collections import Counter

from tests.support.seed_examples import examples, extract


def test_every_seed_has_all_of_its_examples() -> None:
    assert Counter(example.format for example in examples()) == {
        "sentient": 3,
        "humaninloop": 2,
        "agentos": 4,
        "sacp": 5,
    }
    assert [example.source for example in examples("sacp")] == [
        "SYSTEM PROTOCOL: RESPONSE FORMAT INSTRUCTIONS",
        "Agent 1 (Researcher)",
        "Agent 2 (Email Validator)",
        "7.2 Fallback Schema",
        "8.1 Data Mapping from Tools",
    ]


def test_templates_and_forms_are_not_examples() -> None:
    seed = """# One
```json
{"a": <number>}
```
### 2.1 Schema Definition
```json
{"type": "object"}
```
## Three
   ```json
   {"b": 1}
   ```
"""
    assert list(extract("x", seed)) == [("x", "Three", {"b": 1})]
