"""A certificate authority of this machine's own, a certificate for 127.0.0.1 and localhost, and the bundle that trusts both.

The toolkit for `sagemaker_ray://` always speaks TLS and reads REQUESTS_CA_BUNDLE, its websocket SSL_CERT_FILE: one bundle of
certifi's authorities and this one serves both.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

_DAYS = 30


@dataclass(frozen=True)
class Certificates:
    """Where the files are. `key` is readable by its owner only."""

    folder: Path

    @property
    def authority(self) -> Path:
        """The authority's certificate (PEM)."""
        return self.folder / "authority.pem"

    @property
    def chain(self) -> Path:
        """The server's certificate (PEM)."""
        return self.folder / "server.pem"

    @property
    def key(self) -> Path:
        """The server's private key (PEM)."""
        return self.folder / "server.key"

    @property
    def bundle(self) -> Path:
        """certifi's authorities and ours: for REQUESTS_CA_BUNDLE and SSL_CERT_FILE."""
        return self.folder / "bundle.pem"

    @property
    def authority_data(self) -> str:
        """The authority as DescribeCluster's `certificateAuthority.data` gives it: base64 of the PEM."""
        return base64.b64encode(self.authority.read_bytes()).decode()

    def server_context(self) -> ssl.SSLContext:
        """TLS for a server of ours."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.chain, self.key)
        return context


def make(folder: Path) -> Certificates:
    """The certificates of a state folder: made new each time; the authority's own key is never written."""
    import certifi
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    files = Certificates(folder)
    folder.mkdir(parents=True, exist_ok=True)
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)
    end = start + datetime.timedelta(days=_DAYS)

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    root_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root_id = x509.SubjectKeyIdentifier.from_public_key(root_key.public_key())
    root = (
        x509.CertificateBuilder()
        .subject_name(name("hyperpod-rl local authority"))
        .issuer_name(name("hyperpod-rl local authority"))
        .public_key(root_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(root_id, critical=False)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
                data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
            ),
            critical=True,
        )
        .sign(root_key, hashes.SHA256())
    )  # fmt: skip
    addresses = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    leaf = (
        x509.CertificateBuilder()
        .subject_name(name("localhost"))
        .issuer_name(root.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(root_id), critical=False)
        .sign(root_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    files.key.touch(mode=0o600)
    files.key.chmod(0o600)
    files.key.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    files.authority.write_bytes(root.public_bytes(pem))
    files.chain.write_bytes(leaf.public_bytes(pem))
    files.bundle.write_bytes(Path(certifi.where()).read_bytes().rstrip() + b"\n" + root.public_bytes(pem))
    return files
