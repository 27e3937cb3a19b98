# The newest Python that CI runs the tests with: see image_python in .ci/run.
FROM python:3.13-slim AS build

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
RUN python -m venv /venv
COPY requirements.txt requirements-grpc.txt requirements-tracing.txt ./
RUN /venv/bin/pip install --requirement requirements.txt --requirement requirements-grpc.txt --requirement requirements-tracing.txt


FROM python:3.13-slim

# For health checks of services that move over: vLLM's image has it. Any version will do.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends curl && rm -rf /var/lib/apt/lists/*

# HOME is writable even when the root file system is read-only and /tmp a tmpfs. PYTHONPATH is for another working folder.
ENV PATH=/venv/bin:$PATH HOME=/tmp PYTHONPATH=/srv/understudy PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /srv/understudy
COPY --from=build /venv /venv
COPY . .
RUN python -m compileall -q app config wsgi.py
# `vllm serve ...`, for who replaces the entry point.
RUN printf '#!/bin/sh\nexec python -m app.entrypoint vllm "$@"\n' > /usr/local/bin/vllm && chmod 755 /usr/local/bin/vllm

USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-m", "app.server.healthcheck", "--running"]

# Takes what the entry point of vLLM's image takes, and programs.
ENTRYPOINT ["python", "-m", "app.entrypoint"]
CMD ["gunicorn", "wsgi:app"]
