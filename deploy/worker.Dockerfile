# The image forebay-worker: `forebay-worker run` as user 10001, which needs no file that it may write to.
# From the repository's root: docker build -f deploy/worker.Dockerfile . (or `make images`).
# A tag can be moved. For one base for ever give its digest too: --build-arg PYTHON_IMAGE=NAME:TAG@sha256:...
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS builder
WORKDIR /src
COPY deploy/install.sh deploy/
COPY requirements/build.txt requirements/worker.txt requirements/
# An index of your own goes in by --secret id=pip.conf,src=...; it stays out of the image.
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf deploy/install.sh dependencies worker /opt/forebay
COPY schemas schemas
COPY worker worker
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf deploy/install.sh packages worker /opt/forebay

FROM ${PYTHON_IMAGE}
# Days in /etc/shadow are counted from it; layers' times the builder sets (tools/images).
ARG SOURCE_DATE_EPOCH
# The base has its library without bytecode, and nobody may write it later: 0.9 s of a start (measured). Bytecode is valid
# whatever times its sources have, as a reproducible build changes those. No program changes its user: none keeps SUID.
RUN python3 -m pip uninstall --quiet --yes --root-user-action ignore pip setuptools wheel \
    && PYTHONHASHSEED=0 python3 -m compileall -q --invalidation-mode unchecked-hash \
        -x '/(tests?|idlelib|tkinter|site-packages)/' "$(python3 -c 'import os; print(os.path.dirname(os.__file__))')" \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin --no-log-init \
        forebay \
    && find / -xdev -type f -perm /6000 -exec chmod a-s {} +
COPY LICENSE /opt/forebay/
COPY --from=builder /opt/forebay /opt/forebay
ENV PATH=/opt/forebay/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
ARG VERSION=0.1.0
ARG REVISION=unknown
# What only the build knows: its time, where its sources are published, and its base. Empty where it was not told.
ARG CREATED=
ARG SOURCE=
ARG BASE_NAME=
ARG BASE_DIGEST=
LABEL org.opencontainers.image.title=forebay-worker \
    org.opencontainers.image.description="Takes inference requests from Kafka at the pace the backend sustains" \
    org.opencontainers.image.licenses=Apache-2.0 \
    org.opencontainers.image.version=${VERSION} \
    org.opencontainers.image.revision=${REVISION} \
    org.opencontainers.image.created=${CREATED} \
    org.opencontainers.image.source=${SOURCE} \
    org.opencontainers.image.base.name=${BASE_NAME} \
    org.opencontainers.image.base.digest=${BASE_DIGEST}
USER 10001:10001
EXPOSE 8081
# For engines that look at it; Kubernetes has probes of its own. The first seconds go into imports and the first join.
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python3", "-c", "from os import environ as e; from urllib.request import urlopen; \
         urlopen('http://127.0.0.1:' + (e.get('FOREBAY_OPS_PORT') or '8081') + '/livez', timeout=4)"]
ENTRYPOINT ["forebay-worker"]
CMD ["run"]
