"""Mutual TLS: a node proves its name by a certificate, and believes no peer that does not.

Rules
  name       the one DNS name in a certificate's subjectAltName is the node's name; what else it says does not count
  authority  only certificates of the one authority that a node is given are believed, and only until they expire
  version    TLS 1.3, nothing older
  required   beyond loopback, there is no talking without it, unless the caller says that the network is safe

A connection is refused before a byte of it reaches a session: plain text, an unknown authority, an expired certificate.
Whether the name that was proved is the right one, the mesh says.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from os import PathLike
from typing import Any

from msgspec import Struct

from antecede.errors import BadHello, BadParameter

__all__ = ["Tls", "is_loopback", "name_of"]


class Tls(Struct, frozen=True):
    """Where a node's keys are: files in PEM format. `antecede keys` makes such files, for a start.

    >>> Tls("nowhere/authority.pem", "nowhere/a.pem", "nowhere/a.key").context(server=True)
    Traceback (most recent call last):
    antecede.errors.BadParameter: tls: the files nowhere/... cannot be read: No such file or directory
    """

    authority: str | PathLike[str]
    certificate: str | PathLike[str]
    key: str | PathLike[str]

    def context(self, server: bool) -> ssl.SSLContext:
        """Read the files, for one side of a connection. Raises `BadParameter` if they cannot be read."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # Names are of processes, not of hosts: they are compared where the hello is.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(self.certificate, self.key)
            context.load_verify_locations(self.authority)
        except OSError as error:
            reason = error.strerror or str(error)
            raise BadParameter(
                "tls",
                f"the files {self.authority}, {self.certificate} and {self.key} cannot be read: {reason}",
            ) from None
        return context

    def check_name(self, name: str) -> None:
        """Raise `BadParameter` unless the certificate is one of this name that peers believe.

        Both ends of a connection are played here, so whatever a peer would refuse is found before one does.
        """
        server, client = self.context(server=True), self.context(server=False)
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        ends = [
            client.wrap_bio(to_client, to_server, server_hostname="antecede"),
            server.wrap_bio(to_server, to_client, server_side=True),
        ]
        for end in ends * 3:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                reason = getattr(error, "verify_message", "") or error.reason or str(error)
                raise BadParameter(
                    "tls",
                    f"certificate {self.certificate} must be signed by its own authority "
                    f"{self.authority}, and valid now: {reason}",
                ) from None
        try:
            found = name_of(ends[0].getpeercert())
        except BadHello as error:
            raise BadParameter(
                "tls", f"certificate {self.certificate} is for no node: {error.reason}"
            ) from None
        if found != name:
            raise BadParameter(
                "tls",
                f"certificate {self.certificate} is for {found}, and this node is {name}: give it its own",
            )


def name_of(certificate: Mapping[str, Any] | None) -> str:
    """The name that a verified certificate proves.

    >>> name_of({"subjectAltName": (("DNS", "orders"),)})
    'orders'
    >>> name_of({"subjectAltName": (("DNS", "orders"), ("DNS", "billing"))})
    Traceback (most recent call last):
    antecede.errors.BadHello: the certificate has 2 DNS names: give it one, the name of its node
    """
    alternatives = (certificate or {}).get("subjectAltName", ())
    names = [value for kind, value in alternatives if kind == "DNS"]
    if len(names) != 1:
        raise BadHello(f"the certificate has {len(names)} DNS names: give it one, the name of its node")
    return str(names[0])


def is_loopback(host: str) -> bool:
    """Whether what is sent there does not leave the machine.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.2", "::1", "10.0.0.1", "0.0.0.0", "orders.example")]
    [True, True, True, False, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
