FROM python:3.11-slim AS build

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /venv
COPY requirements.txt requirements-tracing.txt ./
RUN /venv/bin/pip install --requirement requirements.txt --requirement requirements-tracing.txt


FROM python:3.11-slim

# HOME is writable even when the root file system is read-only and /tmp a tmpfs.
ENV PATH=/venv/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /srv/understudy
COPY --from=build /venv /venv
COPY . .
RUN python -m compileall -q app config wsgi.py

USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-m", "app.server.healthcheck"]

CMD ["gunicorn", "wsgi:app"]
