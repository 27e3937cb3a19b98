"""Files that change are read again, once they have come to rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from gunicorn.config import Config

from app.serving.gunicorn.certificates import CertificateError, ServerCertificate, check_pair
from app.serving.gunicorn.self_signed import make_pair


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


def test_new_files_are_read_at_the_second_look(cfg: Config) -> None:
    certificate = ServerCertificate(cfg)
    assert not certificate.refresh()
    renew(cfg)
    assert [certificate.refresh() for _ in range(3)] == [False, True, False]


def test_files_that_are_being_written_are_left_alone(cfg: Config) -> None:
    certificate = ServerCertificate(cfg)
    for _ in range(3):
        renew(cfg)
        assert not certificate.refresh()
    assert certificate.refresh()


def test_a_bad_pair_is_told_of_once(cfg: Config) -> None:
    certificate = ServerCertificate(cfg)
    Path(cfg.certfile).write_bytes(make_pair(["localhost"])[0])
    assert not certificate.refresh()
    with pytest.raises(CertificateError, match="do not belong together"):
        certificate.refresh()
    assert not certificate.refresh()
    Path(cfg.keyfile).unlink()
    assert not certificate.refresh()
    with pytest.raises(CertificateError, match="No such file"):
        certificate.refresh()
    renew(cfg)
    assert [certificate.refresh() for _ in range(2)] == [False, True]


def test_one_file_may_have_both(cfg: Config) -> None:
    both = Path(cfg.certfile)
    both.write_bytes(both.read_bytes() + Path(cfg.keyfile).read_bytes())
    check_pair(str(both), None)


def test_what_is_no_pem_is_refused_in_one_line(cfg: Config) -> None:
    Path(cfg.keyfile).write_bytes(b"\0nothing\n")
    with pytest.raises(CertificateError) as refused:
        ServerCertificate(cfg)
    assert cfg.keyfile in str(refused.value) and "\n" not in str(refused.value)
