# The image forebay-producer: the command `forebay` (topics, submit, dead letters, exporter, ...) as user 10001.
# From the repository's root: docker build -f deploy/producer.Dockerfile . (or `make images`).
# A tag can be moved. For one base for ever give its digest too: --build-arg PYTHON_IMAGE=NAME:TAG@sha256:...
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS builder
WORKDIR /src
COPY deploy/install.sh deploy/
COPY requirements/build.txt requirements/producer.txt requirements/
# An index of your own goes in by --secret id=pip.conf,src=...; it stays out of the image.
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf deploy/install.sh dependencies producer /opt/forebay
COPY schemas schemas
COPY producer producer
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf deploy/install.sh packages producer /opt/forebay

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
LABEL org.opencontainers.image.title=forebay-producer \
    org.opencontainers.image.description="The command forebay: topics, requests, results, dead letters, exporter" \
    org.opencontainers.image.licenses=Apache-2.0 \
    org.opencontainers.image.version=${VERSION} \
    org.opencontainers.image.revision=${REVISION} \
    org.opencontainers.image.created=${CREATED} \
    org.opencontainers.image.source=${SOURCE} \
    org.opencontainers.image.base.name=${BASE_NAME} \
    org.opencontainers.image.base.digest=${BASE_DIGEST}
USER 10001:10001
# Most of its commands come to an end by themselves: whoever runs the exporter says how its health is asked for.
HEALTHCHECK NONE
ENTRYPOINT ["forebay"]
