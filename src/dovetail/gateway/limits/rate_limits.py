"""A limit a minute, as a token bucket: what was spent flows back evenly, and what is reserved does not.

In any span of t seconds at most `limit * (1 + t / 60)` is spent, and whatever is spent beyond its reservation delays
what comes after. A meter takes the same memory however much it counts (docs/decisions/0029).
"""

from __future__ import annotations

_MINUTE = 60.0


class Meter:
    """What one key has of one limit. Every call has the `limit` and the time `now` in seconds, which never goes back.

    The limit may change from call to call. `spent` is what was spent at the time `at`, and `reserved` what is reserved.
    """

    def __init__(self) -> None:
        self.spent = 0.0
        self.at = 0.0
        self.reserved = 0

    def remaining(self, limit: int, now: float) -> int:
        """What may be spent at once, rounded down; 0 if more than the limit was spent."""
        return max(0, int(self._room(limit, now)))

    def full_in(self, limit: int, now: float) -> float:
        """In how many seconds nothing is spent any more, if nothing else is."""
        return (self._spent_at(limit, now) + self.reserved) * _MINUTE / limit

    def wait(self, amount: int, limit: int, now: float) -> float:
        """In how many seconds `amount` can be spent; 0.0: now. An estimate if it depends on reservations."""
        return max(0.0, (amount - self._room(limit, now)) * _MINUTE / limit)

    def spend(self, amount: int, limit: int, now: float) -> None:
        """Count `amount` as spent, even beyond the limit."""
        self.spent = self._spent_at(limit, now) + amount

    def reserve(self, amount: int) -> None:
        """Keep `amount` for later spending; a negative amount is given back."""
        self.reserved += amount

    def _room(self, limit: int, now: float) -> float:
        return limit - self._spent_at(limit, now) - self.reserved

    def _spent_at(self, limit: int, now: float) -> float:
        self.spent = max(0.0, self.spent - (now - self.at) * limit / _MINUTE)
        self.at = now
        return self.spent
