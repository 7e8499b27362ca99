"""A workload as a package: `pip install`, then `vllm-harness knee URL --workload support`."""

from harness.extend import Conversation, Lengths, Workload

SUPPORT = Workload(
    name="support",
    title="a support desk: a long system message, few turns, slow readers",
    api="chat",
    prompt=Lengths("lognormal", 60, 0.7),  # tokens of what a user writes in a turn
    output=Lengths("lognormal", 180, 0.4),  # tokens of an answer
    system_tokens=800,  # which all sessions share
    think_ms=Lengths("lognormal", 20_000, 0.6),  # from an answer to the user's next turn
    conversation=Conversation(turns=Lengths("lognormal", 4, 0.5)),
)
