"""Host addresses."""

import ipaddress


def is_ip_address(host: str) -> bool:
    """Whether `host` is an IPv4 or IPv6 address; the latter without brackets and zone."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return "%" not in host


def is_loopback(host: str) -> bool:
    """Whether `host` is `localhost` or an address of the loopback interface; an IPv6 address without brackets."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
