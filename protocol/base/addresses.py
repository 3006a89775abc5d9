"""Host addresses."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether `host` is `localhost` or an address of the loopback interface; an IPv6 address without brackets."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
