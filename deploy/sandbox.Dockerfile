# The image forebay-sandbox: the simulated engine of deploy/compose.yaml. For trying only; it is never published.
# From the repository's root: docker build -f deploy/sandbox.Dockerfile .
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS builder
WORKDIR /src
COPY deploy/install.sh deploy/
COPY requirements/build.txt requirements/sandbox.txt requirements/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf deploy/install.sh dependencies sandbox /opt/forebay
COPY schemas schemas
COPY producer producer
COPY sandbox sandbox
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf deploy/install.sh packages sandbox /opt/forebay

FROM ${PYTHON_IMAGE}
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin forebay
COPY --from=builder /opt/forebay /opt/forebay
ENV PATH=/opt/forebay/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["forebay-sandbox"]
CMD ["engine", "--host", "0.0.0.0"]
