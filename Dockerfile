# The newest Python that CI runs the tests with: see image_python in .ci/run.
FROM python:3.13-slim AS build

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
# pip stays in the base image. Nothing in the image runs the tests of its packages, or speaks gRPC by grpcio: the
# server speaks HTTP/2 by h2, and uses grpcio's messages only.
RUN python -m venv --without-pip /venv
COPY requirements.txt requirements-grpc.txt requirements-tracing.txt ./
RUN pip --python /venv/bin/python install \
        --requirement requirements.txt --requirement requirements-grpc.txt --requirement requirements-tracing.txt \
    && pip --python /venv/bin/python uninstall --yes grpcio \
    && find /venv -depth -type d -name tests -exec rm -r {} +


FROM python:3.13-slim

# For health checks of services that move over: vLLM's image has it. Any version will do.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends curl && rm -rf /var/lib/apt/lists/*

# HOME is writable even when the root file system is read-only and /tmp a tmpfs. PYTHONPATH is for another working folder.
ENV PATH=/venv/bin:$PATH HOME=/tmp PYTHONPATH=/srv/understudy PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /srv/understudy
COPY --from=build /venv /venv
COPY app app
COPY config config
COPY wsgi.py gunicorn.conf.py LICENSE ./
RUN python -m compileall -q app config wsgi.py
# `understudy ...` as where it is installed, and `vllm serve ...` for who replaces the entry point.
RUN printf '#!/bin/sh\nexec python -m app "$@"\n' > /usr/local/bin/understudy \
    && printf '#!/bin/sh\nexec python -m app.entrypoint vllm "$@"\n' > /usr/local/bin/vllm \
    && chmod 755 /usr/local/bin/understudy /usr/local/bin/vllm

USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-m", "app.serving.gunicorn.healthcheck", "--running"]

# Takes what the entry point of vLLM's image takes, and programs.
ENTRYPOINT ["python", "-m", "app.entrypoint"]
CMD ["gunicorn", "wsgi:app"]
