"""An example for your own locustfile: three turns in your own words. docs/locust.md explains it."""

from locust import between, task

from harness.locust import ChatUser

QUESTIONS = ("Why is the sky blue?", "And at sunset?", "Sum that up in one sentence.")


class OwnTurns(ChatUser):
    """Asks, keeps the answer in the history, and asks again."""

    wait_time = between(0.1, 0.3)  # seconds between two conversations

    @task
    def talk(self) -> None:
        """One conversation; it ends early if a request fails."""
        history = [{"role": "system", "content": f"You talk to visitor {self.number}."}]
        for question in QUESTIONS:
            history.append({"role": "user", "content": question})
            reply = self.llm.send(
                messages=history, body={"top_p": 0.9}, output_tokens=24, name="turn"
            )
            if reply.outcome != "ok":
                return  # Locust has counted it, with the reason: reply.error
            history.append({"role": "assistant", "content": reply.text})
