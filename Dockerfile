# One image for every service: `docker build -t headway .`, then `python -m services.<name>`.
# By digest: --build-arg BASE=python:3.11-slim@sha256:… (docs/security.md).
ARG BASE=python:3.11-slim
FROM $BASE
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /opt/headway

# Workers build their kernels for the processor they run on; Triton needs a compiler, too.
RUN command -v g++ >/dev/null \
    || { apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*; }

# Dependencies first: this layer stays while only the code changes. TORCH picks another build,
# for example a CUDA one.
COPY pyproject.toml constraints.txt README.md ./
ARG TORCH=torch
RUN mkdir headway && touch headway/__init__.py headway_launch.py \
    && pip install -c constraints.txt "$TORCH" \
    && pip install -c constraints.txt '.[kubernetes]'

COPY protos protos
COPY headway headway
COPY services services
COPY models models
COPY bench bench
COPY proof proof
COPY cli cli
COPY headway_launch.py ./
RUN pip install --no-deps . \
    && useradd --create-home --uid 10001 headway \
    && mkdir -p /home/headway/.cache/huggingface \
    && install -d -m 0700 -o headway /etc/headway/tls /etc/headway/certs \
    && for role in authority gateway scheduler worker predictor autoscaler supervisor operator client; \
    do install -d -m 0700 -o headway "/etc/headway/certs/$role"; done \
    && chown -R headway /home/headway/.cache
USER headway
ENV HF_HOME=/home/headway/.cache/huggingface
EXPOSE 8000 50051
CMD ["python", "-m", "services.gateway"]
