"""Certificates: reloading of changed files, validation, and self-signed ones."""

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from gunicorn.config import Config

from app.core.server.gunicorn.certificates import (
    SelfSigned,
    ServerCertificate,
    make_pair,
)
from app.core.server.gunicorn.errors import CertificateError
from app.core.settings import load


@pytest.fixture
def cfg(tmp_path: Path) -> Config:
    cfg = Config()
    cfg.set("certfile", str(tmp_path / "tls.crt"))
    cfg.set("keyfile", str(tmp_path / "tls.key"))
    renew(cfg)
    return cfg


def renew(cfg: Config) -> None:
    certificate, key = make_pair(["localhost"])
    Path(cfg.certfile).write_bytes(certificate)
    Path(cfg.keyfile).write_bytes(key)


def test_changed_certificate_files_are_loaded_once_they_are_stable(
    cfg: Config,
) -> None:
    certificate = ServerCertificate(cfg)
    assert not certificate.refresh()
    for _ in range(3):
        renew(cfg)
        assert not certificate.refresh()
    assert [certificate.refresh() for _ in range(2)] == [True, False]


def test_unusable_certificate_or_key_file_causes_a_one_line_error(cfg: Config) -> None:
    certificate = Path(cfg.certfile)
    key = Path(cfg.keyfile)
    secret = load_pem_private_key(key.read_bytes(), None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")
    )
    for file, content in ((key, b"\0nothing\n"), (certificate, b"\0\1\2"), (key, secret)):
        renew(cfg)
        file.write_bytes(content)
        with pytest.raises(CertificateError) as refused:
            ServerCertificate(cfg)
        assert str(file) in str(refused.value) and "\n" not in str(refused.value)


def test_self_signed_certificate_names_the_allowed_hosts_but_no_wildcard() -> None:
    settings = load(["--self-signed-certs", "--allowed-hosts", "*,vllm.example.com"], {})
    path, _ = SelfSigned().pair(settings.server, settings.access.named_hosts)
    certificate = x509.load_pem_x509_certificate(Path(path).read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "vllm.example.com" in names.get_values_for_type(x509.DNSName)
    assert not [name for name in names.get_values_for_type(x509.DNSName) if "*" in name]
