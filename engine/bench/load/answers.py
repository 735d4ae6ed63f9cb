"""``Answer``: one request of a load and what came back, with the times of its tokens."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Answer:
    """One request. Times are in seconds of one monotonic clock.

    Attributes:
        conversation: the index of its conversation.
        turn: the index of its turn.
        due_at: when it was to be sent: at the conversation's arrival, or a think time after the answer before.
        sent_at: when it was sent.
        ended_at: when its end arrived.
        arrivals: when text or tokens arrived, and how many tokens; 0 where the server does not say.
        token_ids: the answer's tokens, where the server sends them.
        text: the answer's text.
        tokens: the number of its tokens.
        prompt_tokens: the number of its prompt's tokens; 0 where the server does not say.
        cached_tokens: how many of these came from a cache; None where the server does not say.
        drafted: drafted tokens; None where the server does not say.
        accepted: accepted drafts.
        error: the code of the error that ended it; empty without one.
        message: the error's message.
    """

    conversation: int
    turn: int
    due_at: float = 0.0
    sent_at: float = 0.0
    ended_at: float = 0.0
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    drafted: int | None = None
    accepted: int = 0
    error: str = ""
    message: str = ""

    @property
    def waited_s(self) -> float:
        """How long it waited in the load generator for its turn."""
        return self.sent_at - self.due_at

    @property
    def ttft_s(self) -> float:
        """The time to the first token."""
        return self.arrivals[0][0] - self.sent_at

    @property
    def total_s(self) -> float:
        """The time to the end."""
        return self.ended_at - self.sent_at

    @property
    def tpot_s(self) -> float | None:
        """The mean time per token after the first; None without a second token."""
        if self.tokens < 2:
            return None
        return (self.arrivals[-1][0] - self.arrivals[0][0]) / (self.tokens - 1)

    def gaps_s(self) -> list[float]:
        """The gaps between tokens. Tokens that arrive together share the gap before them equally.

        Those that arrive with the first token have none before them. Where the server does not say how many arrived,
        each arrival brought an equal share.
        """
        gaps: list[float] = []
        last = None
        for (at, _), count in zip(self.arrivals, self._counts(), strict=True):
            if last is None:
                gaps += [0.0] * (count - 1)
            elif count:
                gaps += [(at - last) / count] * count
            if count or last is None:
                last = at
        return gaps

    def _counts(self) -> list[int]:
        if all(count for _, count in self.arrivals):
            return [count for _, count in self.arrivals]
        number = len(self.arrivals)
        ends = [round(self.tokens * (index + 1) / number) for index in range(number)]
        return [end - start for start, end in zip([0, *ends], ends, strict=False)]
