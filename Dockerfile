# CI runs the tests with this version of Python: `make test-image`.
FROM python:3.13-slim AS build

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
# pip stays in this stage. The image has neither the tests of its packages nor grpcio: the server speaks HTTP/2 with h2
# and uses only the messages of gRPC.
RUN python -m venv --without-pip /venv
COPY uv.lock scripts/locked.py ./
RUN python locked.py --lock uv.lock check grpc tracing > requirements.txt \
    && pip --python /venv/bin/python install --requirement requirements.txt \
    && pip --python /venv/bin/python uninstall --yes grpcio \
    && find /venv -depth -type d -name tests -exec rm -r {} +


FROM python:3.13-slim

# Compose files written for vLLM's image call curl in their health checks. Any version will do, also of jemalloc.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends curl libjemalloc2 && rm -rf /var/lib/apt/lists/*

# Python's own allocator returns a MiB only when no object in it is in use: after five minutes of attack, a worker kept
# 616 MiB, and 131 with jemalloc. Requests cost the same (measured); with glibc's allocator, they cost 10% more. Pages
# stay 0.1 s: without a delay, large bodies are freed three times as slowly.
ENV LD_PRELOAD=libjemalloc.so.2 PYTHONMALLOC=malloc MALLOC_CONF=narenas:1,dirty_decay_ms:100

# HOME is writable even if the root file system is read-only and /tmp a tmpfs. PYTHONPATH allows another working folder,
# from which `python -P` imports nothing.
ENV PATH=/venv/bin:$PATH HOME=/tmp PYTHONPATH=/srv/understudy PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /srv/understudy
COPY --from=build /venv /venv
COPY app app
COPY config config
COPY vllm_facts vllm_facts
COPY workbench workbench
COPY wsgi.py gunicorn.conf.py LICENSE ./
RUN python -m compileall -q app config vllm_facts workbench wsgi.py
# The command of an installed package, and `vllm serve ...` and the path of llm-d-inference-sim for services that replace
# the entry point.
# hadolint ignore=SC2016
RUN mkdir /app \
    && printf '#!/bin/sh\nexec python -P -m app "$@"\n' > /usr/local/bin/understudy \
    && printf '#!/bin/sh\nexec python -P -m app.entrypoint vllm "$@"\n' > /usr/local/bin/vllm \
    && printf '#!/bin/sh\nexec python -P -m app "${@:---host=0.0.0.0}"\n' > /app/llm-d-inference-sim \
    && chmod 755 /usr/local/bin/understudy /usr/local/bin/vllm /app/llm-d-inference-sim

USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-P", "-m", "app.core.server.gunicorn.healthcheck", "--running"]

# Accepts the arguments of the entry point of vLLM's image, and the name of a program.
ENTRYPOINT ["python", "-P", "-m", "app.entrypoint"]
CMD ["gunicorn", "wsgi:app"]
