"""Which driver belongs to which Locust environment: users find theirs here."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from harness.errors import ConfigError

if TYPE_CHECKING:
    from locust.env import Environment

    from harness.drive.driver import Driver

_drivers: WeakKeyDictionary[Environment, Driver | None] = WeakKeyDictionary()


def register(environment: Environment, driver: Driver) -> None:
    """From now on `driver` sends for the users of `environment`."""
    _drivers[environment] = driver


def refuse(environment: Environment) -> None:
    """Nothing can be sent: the reason was said; users leave without a request."""
    _drivers[environment] = None


def driver_of(environment: Environment) -> Driver | None:
    """The environment's driver; None when the target was refused.

    Raises ConfigError, which says how to get one, when nobody ever registered any.
    """
    if environment not in _drivers:
        raise ConfigError(
            "this user has no driver: expected `import harness.drive.plugin` in the locustfile; "
            "try locustfiles/chat.py as a start."
        )
    return _drivers[environment]
