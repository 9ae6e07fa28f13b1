"""A test authority and certificates that it signs, made by the `openssl` command.

For trying things out and for small systems whose operator holds the authority's key. Where there is an authority
already, let it sign: `security` says what a certificate must have.

  authority.pem, authority.key   who signs; the key is needed only to sign more
  NAME.pem, NAME.key             what the node NAME is given, with authority.pem
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

from antecede.errors import BadParameter, CannotWrite

__all__ = ["make_keys"]

NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")

EXTENSIONS = """\
subjectAltName = DNS:{name}
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
"""


def make_keys(directory: str | os.PathLike[str], names: list[str], days: int = 365) -> list[Path]:
    """Certificates for these names, by the authority in this directory, which is made if there is none.

    What is there is not made again. The answer is what was made.
    """
    for name in names:
        if not NAME.fullmatch(name) or name == "authority":
            raise BadParameter(
                "keys",
                f"a name must be letters, digits, '.', '_' and '-', and not 'authority': {name!r} is not",
            )
    root = Path(directory)
    made: list[Path] = []
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not (root / "authority.pem").exists():
            made += _authority(root, days)
        for name in names:
            if not (root / f"{name}.pem").exists():
                made += _certificate(root, name, days)
    except OSError as error:
        raise CannotWrite(
            f"keys {root}", error.strerror or str(error), f"{len(made)} files were made"
        ) from None
    return made


def _authority(root: Path, days: int) -> list[Path]:
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        _openssl(
            "req", "-x509", *NEW_KEY, "-subj", "/CN=Antecede test authority", "-days", str(days),
            "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign",
            "-keyout", f"{scratch}/authority.key", "-out", f"{scratch}/authority.pem",
        )  # fmt: skip
        return _show(Path(scratch), root, "authority")


def _certificate(root: Path, name: str, days: int) -> list[Path]:
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        place = Path(scratch)
        (place / "extensions").write_text(EXTENSIONS.format(name=name))
        _openssl(
            "req",
            "-new",
            *NEW_KEY,
            "-subj",
            f"/CN={name}",
            "-keyout",
            f"{place}/{name}.key",
            "-out",
            f"{place}/csr",
        )
        _openssl(
            "x509", "-req", "-in", f"{place}/csr", "-CA", f"{root}/authority.pem", "-CAkey", f"{root}/authority.key",
            "-set_serial", str(int.from_bytes(os.urandom(16), "big") >> 1), "-days", str(days),
            "-extfile", f"{place}/extensions", "-out", f"{place}/{name}.pem",
        )  # fmt: skip
        return _show(place, root, name)


def _show(scratch: Path, root: Path, name: str) -> list[Path]:
    """Move a pair into its place, the certificate last: where it is, the key is too."""
    (scratch / f"{name}.key").chmod(0o600)
    return [(scratch / f"{name}.{kind}").rename(root / f"{name}.{kind}") for kind in ("key", "pem")]


def _openssl(*arguments: str) -> None:
    try:
        result = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise BadParameter("keys", "there is no command openssl: install OpenSSL 1.1.1 or newer") from None
    if result.returncode:
        reason = result.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise BadParameter("keys", f"openssl {arguments[0]} failed: {reason[0]}")
