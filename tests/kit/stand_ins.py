"""What a test of the network needs on loopback: a certificate that nobody trusts, and a simulated S3."""

from __future__ import annotations

import contextlib
import datetime as dt
import http.client
import ipaddress
import logging
from collections.abc import Iterator
from pathlib import Path

BUCKET = "bucket1"


def write_certificate(path: Path, *names: str) -> Path:
    """A certificate for 127.0.0.1 and these names, with its key, in a file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "odfchain test")])
    now = dt.datetime.now(dt.UTC)
    known = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), *map(x509.DNSName, names)]
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(known), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(private + made.public_bytes(pem))
    return path


@contextlib.contextmanager
def simulated_s3(bucket: str = BUCKET) -> Iterator[str]:
    """Address of a simulated S3 with an empty bucket."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    connection = http.client.HTTPConnection(host, port)
    connection.request("PUT", f"/{bucket}")
    assert connection.getresponse().status == 200
    connection.close()
    yield f"http://{host}:{port}"
    server.stop()
    server._server.server_close()
