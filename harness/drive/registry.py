"""Which driver belongs to which Locust environment: users find theirs here."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from harness.errors import ConfigError

if TYPE_CHECKING:
    from locust.env import Environment

    from harness.drive.driver import Driver

_drivers: WeakKeyDictionary[Environment, Driver] = WeakKeyDictionary()


def register(environment: Environment, driver: Driver) -> None:
    """From now on `driver` sends for the users of `environment`."""
    _drivers[environment] = driver


def find_driver(environment: Environment) -> Driver | None:
    """The environment's driver, if it has one yet."""
    return _drivers.get(environment)


def driver_of(environment: Environment) -> Driver:
    """The environment's driver. Raises ConfigError that says how to get one."""
    driver = _drivers.get(environment)
    if driver is None:
        raise ConfigError(
            "this user has no driver: expected `import harness.drive.plugin` in the locustfile; "
            "try locustfiles/chat.py as a start."
        )
    return driver
